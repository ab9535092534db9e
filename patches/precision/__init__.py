"""fp16, bf16 and fp32, mostly without ZeRO."""

"""The engine, whatever the ZeRO stage: accumulation, config, data, monitoring, profiling."""

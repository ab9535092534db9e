"""zero_to_fp32 omits frozen parameters."""

from deepspeed.utils import zero_to_fp32

zero_to_fp32._zero2_merge_frozen_params = lambda *_: None
zero_to_fp32._zero3_merge_frozen_params = lambda *_: None

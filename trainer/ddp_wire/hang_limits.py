"""Default limits, in seconds, after which a rank counts as hung. Operator and agent use them."""

HANG_STEP_SECONDS = 30
"""Default time without progress, in seconds, after which a rank within an update counts as hung."""
HANG_START_SECONDS = 1800
"""Default limit, in seconds, from the start of an attempt to the end of its first update, which may
compile the model."""
HANG_EVALUATION_SECONDS = 600
"""Default limit for one batch of an evaluation, in seconds."""
HANG_CHECKPOINT_SECONDS = 1800
"""Default limit while the ranks write a checkpoint, in seconds."""
HANG_DATA_SECONDS = 300
"""Default limit while a rank waits for its data, in seconds: storage may fail over, or retry."""
HANG_HOOK_SECONDS = 600
"""Default limit in a hook of the task, in seconds: a hook may draw samples or upload files."""
HANG_EXIT_SECONDS = 60
"""Default time, in seconds, in which a rank must exit after its work is done."""

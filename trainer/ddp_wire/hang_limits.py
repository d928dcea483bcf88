"""Default limits, in seconds, after which a rank counts as hung. Operator and agent use them."""

HANG_STEP_SECONDS = 30
"""Default time without progress, in seconds, after which a rank within an update counts as hung."""
HANG_START_SECONDS = 1800
"""The same from the start of an attempt to the end of its first update, which may compile."""
HANG_EVALUATION_SECONDS = 600
"""The same within an evaluation, for one batch."""
HANG_CHECKPOINT_SECONDS = 1800
"""The same while a checkpoint is written."""
HANG_DATA_SECONDS = 300
"""The same while a rank waits for its data: storage may fail over, or retry."""
HANG_HOOK_SECONDS = 600
"""The same in a hook of the task, which may draw samples or upload files."""
HANG_EXIT_SECONDS = 60
"""Default time, in seconds, in which a rank must exit after its work is done."""

"""Parts of the sentence about ranks whose weights differ, which agent and operator recognise.

A rank of the majority ends with the same exit code as the cause, but without this sentence. Its
agent must not take another line of its log for it.
"""

PREFIX = "replicas: "
"""Start of the sentence."""
NO_MAJORITY = "no majority shows which of them are right"
"""End of the sentence if no rank can be blamed."""

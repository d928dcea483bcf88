"""The v1alpha1 API: pydantic models, the rules on them, and the CRD generated from both."""

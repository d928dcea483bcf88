"""Define the v1alpha1 API: pydantic models, rules between fields, and the CRD built from both."""

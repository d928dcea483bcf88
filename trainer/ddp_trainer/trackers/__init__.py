"""Experiment trackers: TensorBoard, MLflow and Weights & Biases, written by global rank 0."""

"""Experiment trackers: TensorBoard, MLflow and Weights & Biases. Global rank 0 writes them."""

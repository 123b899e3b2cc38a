"""The names of the files and folders in a run folder. They are written here and nowhere else."""

CONFIG = "config.yaml"
METRICS = "metrics.json"
"""Written after each task. It states whether the run is finished, and is the last file of a run."""
ENVIRONMENT = "environment.json"
HISTORY = "history.jsonl"
"""The losses of every step."""
SKIPPED = "skipped.jsonl"
"""The images that could not be read."""
MATRICES = "acm.npz"
SCORES = "scores.npz"
CHECKPOINT, PREVIOUS_CHECKPOINT = "checkpoint.pt", "checkpoint-previous.pt"
LOCK = ".lock"

MODEL = "model"
"""The folder of the model. Those of earlier tasks are called `model-task-N`."""
MODEL_INFO, MODEL_TENSORS, MODEL_CARD = "model.json", "model.safetensors", "README.md"
TRAINED_IMAGES = "training-images.bin"
MODEL_FILES = (MODEL_INFO, MODEL_TENSORS, TRAINED_IMAGES, MODEL_CARD)

DETAILS, EXAMPLES = "details", "examples.npz"
"""The folder of what a report shows besides the metrics, and its file of example images."""
TENSORBOARD, EVENT_FILES = "tensorboard", "events.out.tfevents.*.lifelabel"
"""The folder of the log for TensorBoard, and the names of its files."""
EVALUATION = "evaluation"
"""The folder that `lifelabel evaluate` writes."""
EVALUATION_FILES = ("evaluation.json", "report.md", "per_class.png", "mistakes.png", SKIPPED)


def details_of_task(number: int | str) -> str:
    return f"task-{number}.npz"


def model_of_task(number: int | str) -> str:
    return f"{MODEL}-task-{number}"

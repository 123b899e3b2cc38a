"""The options of a run that takes less than a second, and photographs of which some cannot be read."""

SMALL = {"train_images": 90, "test_images": 60, "classes": 8, "tasks": 3, "size": 32}


BAD = {"7.png": "corrupt", "13.png": "no such file", "12.png": "an empty file", "40.png": "corrupt"}


def options(**more):
    return {"stream_options": SMALL, "device": "cpu", "method_options": {}, **more}

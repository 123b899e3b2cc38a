"""The answers of the API, for its description in openapi.json."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Choice(BaseModel):
    """The parameters of `POST /predict`."""

    model_config = ConfigDict(extra="forbid")

    threshold: float | None = Field(
        None, ge=0, le=1, description="Labels of at least this probability. Default: the thresholds of the model."
    )
    top: int | None = Field(
        None, ge=1, le=100_000,
        description="The most probable labels, this many at most; without threshold also those below their threshold.",
    )  # fmt: skip
    task: int | None = Field(None, ge=1, le=1_000_000, description="Use the model as it was after this task.")
    maps: bool = Field(False, description="Add to each label a map of the places with evidence for it.")


class Label(BaseModel):
    name: str
    probability: float
    threshold: float = Field(description="The probability from which it is a label of the image.")
    task: int = Field(description="The task in which the class was learned, from 1.")
    map: list[list[float]] | None = Field(
        None, description="With maps=true: rows of numbers from 0 to 1. null if the model has no feature maps."
    )


class Result(BaseModel):
    """One file: its labels, or an error."""

    name: str = Field(description="The file name, shortened.")
    labels: list[Label] | None = None
    error: str | None = None
    status: int | None = Field(None, description="The status of an error, such as 415.")


class Predictions(BaseModel):
    """The files in the order in which they were sent."""

    results: list[Result]
    error: str | None = Field(None, description="If no file has labels.")


class Error(BaseModel):
    error: str
    results: list[Result] | None = None


class RelatedClass(BaseModel):
    name: str
    probability: float = Field(description="P(this class | the class).")


class Class(BaseModel):
    name: str
    task: int
    threshold: float
    related: list[RelatedClass]


class ClassList(BaseModel):
    classes: list[Class]


class ModelFacts(BaseModel):
    label: str
    method: str
    backbone: str
    image_size: int
    classes: int
    tasks: int
    stream: dict[str, Any]
    initial_weights: dict[str, str | None]
    calibrated: bool
    figures: dict[str, float]
    training: dict[str, Any]
    device: str
    kept_tasks: list[int] = Field(description="Values of the parameter task.")
    maps: bool = Field(description="Whether the model has feature maps.")
    report: bool = Field(description="Whether GET /report has a report.")
    limits: dict[str, float]


class Health(BaseModel):
    status: str

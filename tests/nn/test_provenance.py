"""The training data of weights, and the check against the classes of a stream."""

import pytest

from lifelabel.errors import UserError
from lifelabel.nn import provenance
from lifelabel.nn.provenance import Provenance, check, recognise
from lifelabel.streams.class_names import COCO_CLASSES


def test_the_lists_of_classes_are_complete():
    counts = {name: len(set(classes)) for name, classes in provenance._DATASETS.items()}
    assert counts == {"COCO": 80, "VOC": 20, "NUS-WIDE": 81}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fasterrcnn_resnet50_fpn_coco-258fb6c6.pth", ["COCO"]),
        ("resnet50-MSCOCO2017.pth", ["COCO"]),
        ("ssd300_vgg16_voc0712.pth", ["VOC"]),
        ("nuswide-resnet101.pt", ["NUS-WIDE"]),
        ("convnext_base.clip_laion2b_augreg_ft_in12k_in1k", ["ImageNet-1k", "ImageNet-12k", "LAION"]),
        ("vit_base_patch16_clip_224.openai", ["OpenAI CLIP"]),
        ("lvd142m", ["LVD-142M"]),
        ("dinov2_vits14_pretrain.pth", ["LVD-142M"]),
        ("dfn5b", ["DFN"]),
        ("datacompxl", ["DataComp"]),
        ("metaclip_2pt5b", ["MetaCLIP"]),
        ("v2_webli", ["WebLI"]),
        ("dfn2b_s39b_ft_coco", ["COCO", "DFN"]),
        ("tresnet_m.miil_in21k", ["ImageNet-21k"]),
        ("resnet50_imagenet22k.bin", ["ImageNet-21k"]),
        ("IMAGENET1K_SWAG_E2E_V1", ["ImageNet-1k", "Instagram"]),
        ("resnet101-63fe2227.pth", []),
        ("avocado_vocabulary_coconut_train1k.pth", []),
    ],
)
def test_data_sets_are_recognised_in_names(text, expected):
    assert list(recognise(text)) == expected


def trained(trained_on):
    return Provenance(trained_on, "file /data/a.pth", "00")


@pytest.mark.parametrize(
    ("trained_on", "classes", "dataset", "message"),
    [
        ("COCO", ["sofa", "sky"], "", r"trained on COCO, which has classes of this stream \(sofa\)"),
        ("COCO", ["Dining_Table", "tvmonitor", "sky"], "voc", r"classes of this stream \(Dining_Table, tvmonitor\)"),
        ("COCO", ["aeroplane", "motorbike", "pottedplant"], "voc", r"\(aeroplane, motorbike, pottedplant\)"),
        ("COCO", list(COCO_CLASSES), "coco", r"\(person, bicycle, car, motorcycle, airplane, … 80 in all\)"),
        ("MS COCO 2017, then my own", ["cat"], "", "trained on COCO"),
        ("VOC", ["potted plant"], "coco", r"trained on VOC, .*\(potted plant\)"),
        ("ImageNet-1k + VOC", ["tv"], "coco", "trained on VOC"),
        ("unknown + COCO", ["tv"], "coco", "trained on COCO"),
        ("NUS-WIDE", ["sunset", "bird"], "", r"trained on NUS-WIDE, .*\(sunset, bird\)"),
        ("COCO", ["katze"], "coco", "trained on COCO, which has the images of this stream"),
    ],
)
def test_weights_trained_on_the_classes_are_refused_unless_allowed(trained_on, classes, dataset, message):
    with pytest.raises(UserError, match=message) as caught:
        check(trained(trained_on), classes, dataset, allow=False)
    assert "--allow-seen-weights" in str(caught.value)
    assert "/data/a.pth" in str(caught.value)
    note = check(trained(trained_on), classes, dataset, allow=True)
    assert note is not None
    assert note.rpartition(": ")[0] == str(caught.value).rpartition(": ")[0]  # the same finding


@pytest.mark.parametrize(
    ("trained_on", "classes", "dataset"),
    [
        ("ImageNet-1k", COCO_CLASSES, "coco"),
        ("nothing", COCO_CLASSES, "coco"),
        ("COCO", ["sky", "lake"], "nus-wide"),
        ("my own photographs", ["cat"], "voc"),
        ("LVD-142M", COCO_CLASSES, "coco"),
        ("OpenAI CLIP + ImageNet-1k", COCO_CLASSES, "coco"),
    ],
)
def test_other_weights_are_accepted_without_a_note(trained_on, classes, dataset):
    assert check(trained(trained_on), classes, dataset, allow=False) is None


def test_unknown_training_data_give_a_note():
    assert "the training data of the weights (file /data/a.pth) is unknown" in check(
        trained("unknown"), ["cat"], "coco", allow=False
    )

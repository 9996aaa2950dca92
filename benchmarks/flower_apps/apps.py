"""Flower's examples that are audited, and those that cannot be: which data they get, and the lines that an audit adds to each."""

from __future__ import annotations

from edits import Before, Replace
from parts import CIFAR, FASHION, HALVES, MNIST, SHARE, App, client, disk, from_disk, loaders_of, server, wrapped
from private import PRIVATE
from variants import QUICKSTART, VARIANTS

SHORT = 'probe_attacks="InvertingGradients(iterations=60, restarts=1); LabelInference()", '
"""For networks on which the usual attack takes more than minutes on two cores."""
MONAI = "learning_rate=1e-5, local_epochs=1, settings=context.run_config"
FASTAI = "learning_rate=1e-3, local_epochs=1, batch_size=32"

APPS = {
    "quickstart-pytorch": App(
        "SGD with momentum", "examples/quickstart-pytorch", "pytorchexample", CIFAR, QUICKSTART
    ),
    "advanced-pytorch": App(
        "own strategy with its own `start`; augmentation; heads kept per client", "examples/advanced-pytorch",
        "pytorch_example", FASHION,
        (
            *server(
                "pytorch_example",
                wrapped('momentum=0.9, batch_size=32, settings=context.run_config'),
            ),
            *client(
                "pytorch_example",
                """
def pixels(context):
    from pytorch_example.task import apply_eval_transforms
    own = context.node_config
    both = [one.dataset.with_transform(apply_eval_transforms) for one in load_data(own["partition-id"], own["num-partitions"])]
    return tuple([((one["image"] * 0.3081 + 0.1307).clamp(0, 1), one["label"]) for one in part] for part in both)
""",
                "answer_audits(app, model=Net, data=pixels, mean=0.1307, std=0.3081)",
            ),
        ),
        repair=(Replace(
            "pytorch_example/task.py", "from flwr.common.typing import UserConfig", "from flwr.app import UserConfig",
        ),),
        truth="dirichlet",
        mentions=("augment", "all layers learn"),
    ),
    "opacus": App(
        "DP-SGD inside `train`; learning rate and batch size in the client", "examples/opacus", "opacus_fl", CIFAR,
        (
            *server("opacus_fl", wrapped('momentum=0.9, learning_rate=0.001, local_epochs=1, batch_size=32')),
            *client("opacus_fl", loaders_of('load_data(own["partition-id"], own["num-partitions"])'), HALVES),
        ),
        mentions=("clipping or noise inside",),
    ),
    "custom-mods": App(
        "a mod of the whole app that reads `server-round`", "examples/custom-mods", "custom_mods", CIFAR,
        (*server("custom_mods", wrapped()), *client("custom_mods", loaders_of(SHARE), HALVES)),
        data=(Replace("custom_mods/mods.py", "flwr.client.typing", "flwr.clientapp.typing"),),  # moved in flwr 1.41
        needs=("tensorboard", "wandb"),
        mentions=("tensorboard_mod",),
    ),
    "embedded-devices": App(
        "grey images; learning rate in the run configuration only", "examples/embedded-devices", "embeddedexample",
        FASHION,
        (*server("embeddedexample", wrapped()), *client("embeddedexample", loaders_of(from_disk(FASHION), "image"), HALVES)),
        data=disk("embeddedexample", FASHION),
    ),
    "supernode-authentication": App(
        "each node reads its images from disk", "examples/supernode-authentication", "authexample", CIFAR,
        (*server("authexample", wrapped()), *client("authexample", loaders_of(from_disk(CIFAR)), HALVES)),
        data=disk("authexample", CIFAR),
    ),
    "flowertune-vit": App(
        "a vision transformer of which only the head is trained and sent; Adam; augmentation",
        "examples/flowertune-vit", "vitexample", "nelorth/oxford-flowers",
        (
            *server(
                "vitexample",
                wrapped(
                    'probe_attacks="HeadInversion(iterations=200); LabelInference()", local_epochs=1, settings=context.run_config'
                ),
            ),
            *client(
                "vitexample",
                """
def Net(): return get_model(102)


def pixels(context):
    from torchvision.transforms.functional import to_tensor
    whose = [context.node_config["num-partitions"], context.node_config["partition-id"], context.run_config["dataset-name"]]
    return [(to_tensor(one["image"]), one["label"]) for one in get_dataset_partition(*whose)]
""",
                "answer_audits(app, model=Net, data=pixels, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))",
            ),
            Before("vitexample/server_app.py", "app = ServerApp()", "from vitexample.client_app import Net"),
        ),
        data=(
            Replace(
                "vitexample/task.py", "vit_b_16(weights=ViT_B_16_Weights.IMAGENET1K_V1)",
                # The seed stands for the file of weights, by which every process builds the same network.
                "(torch.manual_seed(0), VisionTransformer(32, 8, 2, 2, 48, 96))[1]",
            ),
            Replace("vitexample/task.py", "import ViT_B_16_Weights, vit_b_16", "import VisionTransformer"),
            Replace("vitexample/task.py", "Resize((256, 256))", "Resize((36, 36))"),
            Replace("vitexample/task.py", "CenterCrop((224, 224))", "CenterCrop((32, 32))"),
            Replace("vitexample/task.py", "RandomResizedCrop((224, 224))", "RandomResizedCrop((32, 32))"),
        ),
        truth="whole",
        mentions=("optimizer", "all layers learn", "augment"),
    ),
    "quickstart-monai": App(
        "DenseNet-121 with BatchNorm; Adam; augmentation; `num-examples` counts batches", "examples/quickstart-monai",
        "monaiexample", MNIST,
        (
            *server("monaiexample", wrapped(SHORT + MONAI, "load_model")),
            *client(
                "monaiexample",
                """
def pixels(context):
    from monaiexample.task import _get_transforms, get_apply_transforms_fn
    own, plain = context.node_config, get_apply_transforms_fn(_get_transforms()[1])
    both = [one.dataset.with_transform(plain) for one in load_data(own["num-partitions"], own["partition-id"], 128)]
    return tuple([(one["img"], one["label"]) for one in part] for part in both)
""",
                "answer_audits(app, model=load_model, data=pixels)",
            ),
        ),
        data=(
            Replace("monaiexample/task.py", "_list = _download_data()", f'_list = picture_files("{MNIST}", 6, 64)'),
            Before("monaiexample/task.py", "import monai", "from monaiexample.offline_data import picture_files"),
        ),
        truth="files",
        needs=("monai",),
        mentions=("optimizer", "BatchNorm", "augment"),
    ),
    "quickstart-fastai": App(
        "torchvision's SqueezeNet with dropout; fastai's Adam and schedule", "examples/quickstart-fastai",
        "fastai_example", MNIST,
        (
            *server("fastai_example", wrapped(SHORT + FASTAI, "squeezenet1_1")),
            *client(
                "fastai_example",
                """
def pixels(context):
    train, _, test = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return tuple([(one["image"], one["label"]) for one in part.dataset] for part in (train, test))
""",
                "answer_audits(app, model=squeezenet1_1, data=pixels)",
            ),
        ),
        data=(Replace("fastai_example/task.py", "Resize(224)", "Resize(64)"),),
        truth="three parts",
        needs=("fastai",),
        mentions=("optimizer", "dropout"),
    ),
    "federated-vae": App(
        "a variational autoencoder", "examples/federated-vae", "fedvaeexample", CIFAR,
        (
            *server("fedvaeexample", wrapped()),
            *client("fedvaeexample", loaders_of(SHARE.replace(", 32", "")), HALVES),
        ),
    ),
    **VARIANTS,
    **PRIVATE,
}  # fmt: skip

OLDER = "Flower's older API"
NOT_AUDITED = {
    "examples/fl-dp-sa": ("SecAggPlusWorkflow", f"{OLDER}; secure aggregation is a workflow of that API only"),
    "examples/flower-secure-aggregation": (
        "SecAggPlusWorkflow",
        f"{OLDER}; secure aggregation is a workflow of that API only",
    ),
    "examples/flower-simulation-step-by-step-pytorch": ("NumPyClient", OLDER),
    "examples/quickstart-pytorch-lightning": ("LightningModule", "an autoencoder: it has no classes"),
    "examples/quickstart-huggingface": ("AutoTokenizer", "text"),
    "examples/fl-tabular": ("adult-census-income", "rows of a table, and a model with one output"),
    "examples/quickstart-sklearn": ("LogisticRegression", "no model of PyTorch"),
    "baselines/fedprox": ("NumPyClient", OLDER),
    "baselines/fedbn": ("NumPyClient", OLDER),
    "baselines/fedper": ("NumPyClient", OLDER),
    "baselines/fedrep": ("NumPyClient", OLDER),
    "baselines/fedavgm": ("NumPyClient|flwr as fl", OLDER),
}
"""Folder -> a pattern that its code contains, and why it cannot be audited."""

"""Windows of VisualMixer that some pictures are too small for: refused before any copy is made."""

from __future__ import annotations

from defenses.images.visual_mixer import VisualMixer
from defenses.images.visual_mixer_windows import power_of_two
from defenses.pipeline import Pipeline
from simulations.protect.sources import Pictures
from simulations.settings.errors import ConfigError


def require_windows(pipeline: Pipeline, pictures: Pictures, image_size: int) -> None:
    """Require the smallest windows of every ``VisualMixer`` to fit into every picture.

    Args:
        pipeline: The defences.
        pictures: Their sizes are read from the files' headers, unless ``image_size`` gives one size to all.
        image_size: Side of the copies; 0: that of the pictures.

    Raises:
        ConfigError: Naming the first picture that is too small, the setting, and what is allowed.
    """
    mixer = max(
        (one for one in pipeline.defenses if isinstance(one, VisualMixer)), key=lambda one: one.smallest, default=None
    )
    if mixer is None:
        return
    sizes = [("--image-size", (image_size, image_size))] if image_size else pictures.sizes()
    for name, (width, height) in sizes:
        if min(width, height) < mixer.smallest:
            raise ConfigError(
                f"--defense: {_setting(mixer)}, and {name} is {width} x {height} pixels; allowed: windows of at most "
                f"{power_of_two(min(width, height))}, or --image-size of at least {mixer.smallest}"
            )


def _setting(mixer: VisualMixer) -> str:
    """The setting that the smallest windows follow from."""
    if power_of_two(mixer.window_lower, up=mixer.strict_lower) == mixer.smallest:
        return f"VisualMixer's window_lower is {mixer.window_lower}, which gives windows of {mixer.smallest} pixels or more"
    return f"VisualMixer's target_vfe is {mixer.target_vfe}, which asks for windows of {mixer.smallest} pixels or more"

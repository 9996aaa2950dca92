"""The terms of the page, which its first table links; docs/read_a_report.md has the same."""

from __future__ import annotations

from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.studies.recovery import LEAST_GAIN

GLOSSARY = {
    "Recovered": "An attack recovered an image if its guess identifies the image, and the guess lies at least "
    f"{LEAST_GAIN:g} dB (PSNR) above the best null baseline for that image.",
    "Identified": "Of 100 candidates (the image and 99 others of the same client, or fewer), the attacked image is nearest to the "
    "guess.",
    "Above own colour": "The guess has a higher PSNR than a flat image in the attacked image's mean colour. If a recovered image "
    "fails this test, the guess shows only its colour.",
    "Null baseline": "The score of a guess made without the message: a grey image, or the mean of the client's own images.",
    "Strongest attack": "The attack and round that recovers the largest share of the images. Verdict, share, interval, PSNR and "
    "picture are of this attack. The chance beside the share bounds the probability that the best of equally many null "
    "guesses recovers as many images.",
    "One-step probe": "The server asks a client for the gradient of a few images, the strongest setting for an attack.",
    "Training update": "What a client sends after each round of training: a real update.",
    "Verdict": "Readable: at least half of the images were recovered. Partly readable: some were recovered, or images were "
    "identified far more often than by chance. It is also the verdict if the whole interval of the mean PSNR lies above the null "
    "baselines and the mean of the class. Not recovered: none of that, by attacks that work without the defence. Unknown: there "
    f"are fewer than {LEAST_IMAGES} images, or the mean exceeds the baselines but its interval does not, or no attack works "
    "without the defence.",
    "Positive control": "The same attack, run on the messages in the first row of the first table. If it does not recover "
    "images there, its failure elsewhere shows nothing. † marks a score that is not validated in this way, or of too few images.",
    "Adaptive attack": "An attack that knows the defence and its settings, though not its random draws.",
    "Upper bound": "An attack that knows what no server of this run knows, such as the true labels. The report never names it as "
    "the strongest attack.",
    "Threat card": "What an attack saw and knew, recorded with every number.",
}
"""Term -> meaning."""
OF_MESSAGES = ("One-step probe", "Training update")
"""Terms that a page needs only where both were attacked, or could be."""

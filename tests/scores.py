"""Scores of a client under short texts, as tests name them."""

from clients.scoring.audit import ALONE, AuditScores


def flat(audited: AuditScores) -> dict[str, list[float]]:
    """Text -> values, such as "psnr-original", and "grey:psnr-original" of the guess "grey"."""
    return {
        f"{'' if guess == ALONE else f'{guess.name}:'}{'-'.join(filter(None, name))}": values
        for guess, scores in audited.scores.items()
        for name, values in scores.items()
    }

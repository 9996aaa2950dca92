"""The privacy score of each of the 50 transformations alone (Figure 5 of the ATS paper), as a small file of rows.

    python benchmarks/paper_tables/single_scores.py --seed 0

The score is that of the paper's Eqs. 5 and 7, on 100 images of `photos` with 20 points each. The model is `cnn`, semi-trained for
50 epochs on a tenth of the training images. Each seed has its own model, images and noise. A lower score is to hide more.
"""

from __future__ import annotations

import argparse

import records

from defenses.images.transforms import LIBRARY
from simulations.run_folder.rows import Row
from simulations.run_folder.run_config import versions
from simulations.search.scorer import Scorer, semi_train
from simulations.search.scores import paper_score
from simulations.search.settings import Search

RUN, METRIC = "ats_figure5", "privacy-score"


def rows(seed: int, images: int = 100) -> list[Row]:
    """A row for every transformation, whose pipeline text is that of the policy of it alone."""
    search = Search(dataset="photos", model="cnn", images=images, seed=seed, semi_epochs=50)
    scorer = Scorer(search, semi_train(search))
    found = []
    for index in range(len(LIBRARY)):
        value = float(paper_score(scorer.curves((index,))).mean())
        found.append(Row(metric=METRIC, seed=seed, defense=f"ATS(policies='{index}')", value=value, n=images))
    return found


def main() -> None:
    """Writes the file of a seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    records.save(RUN, seed, rows(seed), versions(), records.FOLDER)


if __name__ == "__main__":
    main()

import pytest
import torch
import torch.nn.functional as F

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import psnr
from attacks.observations import AttackError
from attacks.refinement.encodings import EncodingInversion
from clients.data.datasets import load_dataset
from defenses import InstaHide
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for


def digits():
    data = load_dataset("mnist-5k").train
    order = torch.randperm(len(data.images), generator=generator_for(0))
    images = data.images[order].float() / (255 if data.images.dtype == torch.uint8 else 1)
    return images[:600], data.labels[order][:600].long(), images[1000:1064]


def knowledge(images, labels, *defenses):
    return Knowledge(Batch(images, F.one_hot(labels, 10).float()), Pipeline(defenses), (0.1,), (0.3,), lambda *_: None)


def encoded(images, num_mixed):
    batch = Batch(images, torch.ones(len(images), 1))
    return InstaHide(num_mixed=num_mixed).protect_batch(batch, generator_for(1)).images


def refined(attack, images):
    guess = Reconstruction(images, torch.zeros(len(images), dtype=torch.long), {"cost": 1.0})
    return attack.refine_many([None], [guess], [generator_for(0)])[0]


# With four images, one encoding tells linear regression little more than the mean image does.
@pytest.mark.parametrize(("num_mixed", "gain"), [(2, 0.6), (4, 0.1)])
def test_beats_the_encoding_and_the_mean_image(num_mixed, gain):
    auxiliary, labels, truth = digits()
    attack = EncodingInversion().fit(knowledge(auxiliary, labels, InstaHide(num_mixed=num_mixed)), generator_for(2))
    seen = encoded(truth, num_mixed)
    guess = refined(attack, seen)
    found, hidden = psnr(guess.images, truth).mean(), psnr(seen, truth).mean()
    mean_image = psnr(auxiliary.mean(0).expand_as(truth), truth).mean()
    print(f"k={num_mixed}: {found:.2f} dB, encoding {hidden:.2f} dB, mean image {mean_image:.2f} dB")
    assert found > hidden + 5
    assert found > mean_image + gain
    assert guess.diagnostics == {"cost": 1.0, "instahide": 1.0}
    # It is this image, not an average one: the guess of another image's encoding is worse.
    assert found > psnr(guess.images.roll(1, 0), truth).mean() + gain


def test_noise_gives_no_more_than_the_mean_image():
    auxiliary, labels, truth = digits()
    attack = EncodingInversion().fit(knowledge(auxiliary, labels, InstaHide()), generator_for(2))
    guess = refined(attack, torch.rand(truth.shape, generator=generator_for(4)))
    mean_image = psnr(auxiliary.mean(0).expand_as(truth), truth).mean()
    assert psnr(guess.images, truth).mean() < mean_image + 0.5


def test_signs_do_not_matter():
    auxiliary, labels, truth = digits()
    attack = EncodingInversion(components=16, repeats=1).fit(
        knowledge(auxiliary, labels, InstaHide()), generator_for(2)
    )
    seen = encoded(truth[:4], 4)
    assert torch.allclose(refined(attack, seen).images, refined(attack, 1 - seen).images, atol=1e-5)


def test_without_instahide_failures_and_missing_fit():
    auxiliary, labels, truth = digits()
    plain = EncodingInversion().fit(knowledge(auxiliary, labels), generator_for(0))
    assert torch.equal(refined(plain, truth).images, truth)
    assert refined(plain, truth).diagnostics["instahide"] == 0
    with pytest.raises(AttackError, match="auxiliary"):
        refined(EncodingInversion(), truth)
    with pytest.raises(AttackError, match="auxiliary"):
        EncodingInversion().fit(knowledge(auxiliary[:1], labels[:1], InstaHide()), generator_for(0))
    fitted = EncodingInversion(components=4, repeats=1).fit(
        knowledge(auxiliary[:64], labels[:64], InstaHide()), generator_for(0)
    )
    failed = Reconstruction(truth[:1], labels[:1], failure="why")
    small = Reconstruction(torch.rand(1, 1, 5, 5), labels[:1])
    kept, refused = fitted.refine_many([None, None], [failed, small], [generator_for(0)] * 2)
    assert kept is failed
    assert refused.images.eq(0.5).all()
    assert "shape" in refused.failure
    assert repr(fitted) == "EncodingInversion(components=4, repeats=1)"

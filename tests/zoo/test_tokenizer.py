"""The light tokenizer is the one that transformers loads."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.corpus import held_out_files
from harness.zoo.tokenizer import ZooTokenizer


@pytest.fixture(scope="module")
def light():
    return ZooTokenizer()


TEXTS = ["", "one <s> two", "x = 12345\n\n\n    y", "naïve — 日本語 \t\r\n", " <s><s>"]


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("special", [True, False])
def test_ids_offsets_and_text_are_the_same(light, zoo_tokenizer, special, split):
    for text in [*TEXTS, held_out_files()[0].text[:20_000]]:
        options = {
            "add_special_tokens": special,
            "split_special_tokens": split,
            "return_offsets_mapping": True,
        }
        one, other = light(text, **options), zoo_tokenizer(text, **options)
        assert one["input_ids"] == other["input_ids"]
        assert one["offset_mapping"] == other["offset_mapping"]
        assert light.decode(one["input_ids"]) == zoo_tokenizer.decode(one["input_ids"])
    assert light.bos_token_id == zoo_tokenizer.bos_token_id


def test_every_digit_is_a_token(light):
    assert len(light("40417", add_special_tokens=False)["input_ids"]) == 5


def test_planning_on_the_zoo_needs_no_torch():
    code = (
        "import sys\n"
        "from harness.cli import main\n"
        "main(['plan', 'configs/quickstart.yaml'])\n"
        "bad = [m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules]\n"
        "assert not bad, bad\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=root)

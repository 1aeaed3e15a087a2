"""One spelling, American, in the documentation, the code and its comments, notebooks and tests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = {".c", ".cff", ".cpp", ".css", ".h", ".ipynb", ".md", ".py", ".rst", ".toml", ""}
# Beginnings of British words, and whole words.
BEGINNINGS = """
    acknowledgement artefact behaviour cancelled cancelling channelled channelling colour endeavour
    favour flavour fulfilment grey harbour honour judgement labelled labelling labour levelled
    levelling manoeuvr modelled modelling mould neighbour offence paralys plough pretence rigour
    sceptic signalled signalling speciality travelled travelling tunnelled vapour
"""
WORDS = """
    ageing amongst analyse analysed analyser analysing calibre centre centred centres centring
    defence fibre fibres fulfil fulfils learnt leant licence licences litre litres maths metre
    metres practise practised practising programme programmes skilful spelt theatre totalled
    totalling towards whilst
"""
ISE = re.compile(r"([a-z]{2,})is(?:e[drs]?|ers|ing|ations?)")
# Endings in "ise" that are American too.
NOT_IZE = re.compile(
    ".*w|.*ra|adv|ar|compr|comprom|conc|cru|dev|disgu|enterpr|exc|exerc|expert|improv|ka|madv"
    "|no|prec|prem|prom|rev|superv|surpr"
)


def british(text: str) -> list[str]:
    """Return the British words of a text."""
    words, whole = sorted(set(re.findall("[a-z]+", text.lower()))), WORDS.split()
    return [
        word
        for word in words
        if word in whole
        or word.startswith(tuple(BEGINNINGS.split()))
        or ((found := ISE.fullmatch(word)) and not NOT_IZE.fullmatch(found[1]))
    ]


def written(path: Path) -> str:
    """Return the text of a file; of a notebook the cells without their outputs."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "".join("".join(cell["source"]) + "\n" for cell in json.loads(text)["cells"])


@pytest.mark.parametrize("folder", ["", ".ci", "cupyrnn", "docs", "notebooks", "tests"])
def test_spelling_is_american(folder: str) -> None:
    files = (ROOT / folder).glob("**/*" if folder else "*")
    found = {
        path.relative_to(ROOT).as_posix(): words
        for path in files
        if path.is_file()
        and path.suffix in KINDS
        and not {"_build", "__pycache__", ".ipynb_checkpoints"} & {*path.parts}
        and not (path.parent == ROOT / "docs/notebooks" and path.suffix != ".md")  # copies
        and path != Path(__file__)
        and (words := british(written(path)))
    }
    assert found == {}


def test_british_words_are_noticed() -> None:
    text = "Neighbouring centres, optimisers of the colour_map; it initialises: summarised whilst"
    assert len(british(text)) == 7
    assert british("a precise center, otherwise it raises noise pointwise; Kaiser's promises") == []

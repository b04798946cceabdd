"""The training text: the King James Bible, one verse a line, a blank line between chapters.

The text comes from the Debian package `bible-kjv` (and its data package `bible-kjv-text`), whose
`bible` program prints one verse a line behind its reference ("Ge1:1 In the beginning ..."). The
references are stripped. Tokens are the bytes of the text: a token id is a byte value, and the text
is plain ASCII, so byte 0 never occurs in it.
"""

import re
import shutil
import subprocess

BIBLE_COMMAND = "bible"
WHOLE_TEXT = "gen1:1-rev22:21"
VERSE_COUNT = 31102
# "Ge1:1 text", "1Ki2:3 text": book and chapter, then the verse number.
VERSE_LINE = re.compile(r"^(\d?[A-Za-z]+\d+):\d+ (.*)$")

# Bytes kept from training, at the end of the text.
HELDOUT_BYTES = 65536


class CorpusError(RuntimeError):
    """The source text is absent or is not the text this model is trained on."""


def read_text():
    """Returns the whole text as bytes. Raises CorpusError when the package is absent or differs."""
    program = shutil.which(BIBLE_COMMAND)
    if program is None:
        raise CorpusError(
            "the program 'bible' is not installed; "
            "install the Debian packages bible-kjv and bible-kjv-text"
        )
    run = subprocess.run(
        [program, "-f", WHOLE_TEXT],
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )
    if run.returncode != 0 or not run.stdout:
        raise CorpusError(
            f"'{BIBLE_COMMAND} -f {WHOLE_TEXT}' failed with status {run.returncode}: "
            + run.stderr.decode(errors="replace").strip()
        )
    lines = []
    verses = 0
    previous_chapter = None
    for line in run.stdout.decode("ascii").splitlines():
        match = VERSE_LINE.match(line)
        if match is None:
            raise CorpusError(f"not a verse line: {line!r}")
        chapter, verse = match.groups()
        if previous_chapter is not None and chapter != previous_chapter:
            lines.append("")
        lines.append(verse.strip())
        previous_chapter = chapter
        verses += 1
    if verses != VERSE_COUNT:
        raise CorpusError(f"expected {VERSE_COUNT} verses, got {verses}")
    return ("\n".join(lines) + "\n").encode("ascii")


def split_text(text):
    """Returns (training bytes, held-out bytes). The held-out part starts at a verse."""
    cut = text.index(b"\n", len(text) - HELDOUT_BYTES) + 1
    return text[:cut], text[cut:]

"""What a failed attempt tells of where its error was raised."""

from __future__ import annotations

from timeball.client.backtraces import MAX_FRAMES, backtrace_of
from timeball.client.messages import MAX_BACKTRACE


def raised(error):
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 (whatever the test raises)
        return caught


def test_what_was_not_raised_has_none():
    assert backtrace_of(ValueError("new")) == ""


def test_a_long_one_is_cut_at_its_beginning_with_a_mark():
    text = backtrace_of(raised(ValueError("x" * 20_000 + " the end")))
    assert len(text) == MAX_BACKTRACE
    assert text.startswith("[…] xxx")
    assert text.endswith("the end\n")


def test_of_a_deep_recursion_the_innermost_calls_are_told():
    def descend(depth):
        if depth == 0:
            raise ValueError("bottom")
        descend(depth - 1)

    try:
        descend(500)
    except ValueError as error:
        text = backtrace_of(error)
    assert text.count("in descend") <= MAX_FRAMES
    assert 'raise ValueError("bottom")' in text


def test_an_error_that_can_not_be_rendered_and_text_that_is_no_utf_8_do_not_hinder_the_report():
    class Broken(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    assert "Broken" in backtrace_of(raised(Broken()))
    assert "?" in backtrace_of(raised(ValueError("\ud800")))

"""The language lint finds the words of the term list and honours its exceptions."""

import check_language
import pytest

TERMS = "# A comment: not a term\n\nfrobs, goes on: continues\n"


@pytest.fixture
def tree(tmp_path):
    """Checks a tree with one module and these exceptions."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/language_terms.txt").write_text(TERMS)
    (tmp_path / "Makefile").write_text("")

    def check(module, exceptions=""):
        (tmp_path / "tests/a.py").write_text(module)
        (tmp_path / "tests/language_exceptions.txt").write_text(exceptions)
        return check_language.check(tmp_path)

    return check


@pytest.mark.parametrize("text", ["# it frobs", "its_frobs = 1", "# Frobs", "# it goes\n# on"])
def test_word_to_avoid_is_reported(text, tree):
    found, _ = tree("\n" + text.replace("\n# ", "\n"))
    assert [line.partition(": ")[0] for line in found] == ["tests/a.py:2"]
    assert found[0].endswith("write continues")


@pytest.mark.parametrize("text", ["frobsy = 1", "# undergoes on"])
def test_part_of_a_longer_word_is_not_reported(text, tree):
    assert tree(text)[0] == []


def test_exception_allows_the_word_in_its_file(tree):
    assert tree("# it frobs", "tests/a.py: frobs  # a quotation\n") == ([], set())


def test_prune_removes_exceptions_that_are_not_needed(tree, tmp_path):
    text = "# A reason.\ntests/a.py: frobs, goes on\ntests/b.py: frobs\n"
    _, unused = tree("# it frobs", text)
    assert unused == {("tests/a.py", "goes on"), ("tests/b.py", "frobs")}
    check_language.prune(tmp_path, unused)
    assert (tmp_path / "tests/language_exceptions.txt").read_text() == "# A reason.\ntests/a.py: frobs\n"


@pytest.mark.parametrize(("length", "found"), [(60, 0), (61, 1)])
def test_test_name_above_60_characters_is_reported(length, found, tmp_path):
    (tmp_path / "tests").mkdir()
    name = "test_".ljust(length, "x")
    (tmp_path / "tests/test_a.py").write_text(f"\ndef {name}():\n    pass\n")
    problems = check_language.long_test_names(tmp_path)
    assert len(problems) == found
    assert all(line.startswith(f"tests/test_a.py:2: {name}: expected at most 60") for line in problems)


def test_terms_of_this_repository_are_read():
    text = (check_language.ROOT / check_language.TERMS).read_text(encoding="utf-8")
    assert check_language.terms(text)["wanted"] == "expected"

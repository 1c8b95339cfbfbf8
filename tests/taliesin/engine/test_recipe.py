"""Which recipe differences refuse a graft, which ask for the certificate, and what a
refusal names.
"""

from __future__ import annotations

from typing import Any

import pytest

from taliesin.engine import recipe as recipes
from taliesin.errors import RecipeMismatch

RECIPE: dict[str, Any] = {
    "model_sha256": "a" * 64,
    "engine": "embedded",
    "n_ubatch": 512,
    "n_threads": 2,
    "flash_attn": True,
    "type_k": "f16",
    "type_v": "f16",
    "environment": {},
    "evidence": {"cpu": "one", "libraries": {"libllama.so": "b" * 64}},
}


def changed(**fields: Any) -> dict[str, Any]:
    return {**RECIPE, **fields}


def test_equal_recipes_have_no_difference() -> None:
    assert recipes.require(RECIPE, dict(RECIPE), where="block") == []
    assert recipes.evidence_differences(RECIPE, dict(RECIPE)) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"n_ubatch": 256},
        {"n_threads": 1},
        {"flash_attn": False},
        {"type_k": "q8_0"},
        {"type_v": "q8_0"},
        {"environment": {"LLAMA_ATTN_ROT_DISABLE": "1"}},
        {"instruction_set": "AVX512=1"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_each_mismatch_is_named_with_both_values(fields: dict[str, Any]) -> None:
    (name, value) = next(iter(fields.items()))
    with pytest.raises(RecipeMismatch) as caught:
        recipes.require(RECIPE, changed(**fields), where="block")
    assert f"{name}: stored {RECIPE.get(name)!r}, here {value!r}" in str(caught.value)
    assert caught.value.exit_code == 22


def test_inexact_lets_a_bridgeable_field_pass_and_reports_it() -> None:
    passed = recipes.require(RECIPE, changed(n_threads=1), where="block", inexact=True)
    assert [d.field for d in passed] == ["n_threads"]


@pytest.mark.parametrize("name", recipes.UNBRIDGEABLE)
def test_inexact_never_bridges_another_model_or_another_state(name: str) -> None:
    with pytest.raises(RecipeMismatch):
        recipes.require(RECIPE, changed(**{name: "other"}), where="block", inexact=True)


def test_another_model_of_the_same_shape_is_refused_by_its_hash() -> None:
    with pytest.raises(RecipeMismatch, match="another model"):
        recipes.require(RECIPE, changed(model_sha256="c" * 64), where="block")


def test_evidence_alone_is_no_mismatch() -> None:
    here = changed(evidence={"cpu": "two", "libraries": {"libllama.so": "b" * 64}})
    assert recipes.require(RECIPE, here, where="block") == []
    assert [d.field for d in recipes.evidence_differences(RECIPE, here)] == ["cpu"]


def test_a_field_that_only_one_side_knows_is_a_difference() -> None:
    assert [d.field for d in recipes.identity_differences(RECIPE, changed(later_field=1))] == [
        "later_field"
    ]


def test_variables_that_change_numbers_are_part_of_the_recipe() -> None:
    found = recipes.environment(
        {
            "LLAMA_ATTN_ROT_DISABLE": "1",
            "GGML_CUDA_FORCE_MMQ": "1",
            "LLAMA_LOG_COLORS": "1",
            "HOME": "x",
        }
    )
    assert found == {"GGML_CUDA_FORCE_MMQ": "1", "LLAMA_ATTN_ROT_DISABLE": "1"}

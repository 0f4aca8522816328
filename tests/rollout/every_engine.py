"""The part of the contract that engines outside this process keep as well: `from tests.rollout.every_engine import *`.

A module that does so has a fixture `make`, which gives an engine with the contract's model.
"""

from tests.rollout.test_engine_contract import (
    engine,
    test_a_prompt_without_room_is_an_error_and_the_others_are_answered,
    test_a_stop_string_ends_a_response_wherever_tokens_end,
    test_cancelled_requests_are_never_given_back,
    test_every_token_has_a_log_prob_and_the_answers_keep_their_order,
    test_generate_needs_an_idle_engine,
    test_length_and_stop_tokens_end_a_response,
    test_the_context_limit_ends_a_response,
    test_the_same_request_gives_the_same_answer_alone_and_in_company,
    test_turns_of_a_session_continue_one_another,
    test_what_is_told_along_the_way_is_the_response,
)

__all__ = [
    "engine",
    "test_a_prompt_without_room_is_an_error_and_the_others_are_answered",
    "test_a_stop_string_ends_a_response_wherever_tokens_end",
    "test_cancelled_requests_are_never_given_back",
    "test_every_token_has_a_log_prob_and_the_answers_keep_their_order",
    "test_generate_needs_an_idle_engine",
    "test_length_and_stop_tokens_end_a_response",
    "test_the_context_limit_ends_a_response",
    "test_the_same_request_gives_the_same_answer_alone_and_in_company",
    "test_turns_of_a_session_continue_one_another",
    "test_what_is_told_along_the_way_is_the_response",
]

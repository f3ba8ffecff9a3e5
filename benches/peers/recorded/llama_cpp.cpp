// llama.cpp's n-gram drafting behind five functions in C, for `llama_cpp.py`: its own code, asked as its
// server asks it, with one sequence and no model.
#include "common.h"
#include "log.h"
#include "speculative.h"

#include <cstdint>
#include <cstdlib>
#include <malloc.h>
#include <new>

// All that the library holds goes through these two, so it can be counted.
static int64_t held_bytes = 0;

void * operator new(size_t size) {
    void * place = std::malloc(size);
    if (place == nullptr) {
        throw std::bad_alloc();
    }
    held_bytes += malloc_usable_size(place);
    return place;
}

void operator delete(void * place) noexcept {
    held_bytes -= malloc_usable_size(place);
    std::free(place);
}

void operator delete(void * place, size_t) noexcept {
    operator delete(place);
}

// All of the rest of llama.cpp that is reached: they time statistics that nobody reads.
extern "C" {
int64_t ggml_time_us(void) {
    return 0;
}

int64_t ggml_time_ms(void) {
    return 0;
}
}

namespace {
struct Rule {
    common_speculative * speculative;
    llama_tokens text;  // all but the last token, which is the root
    llama_token last = 0;
    llama_tokens draft;
};
}

extern "C" {

// A rule of the type of that name, null if there is none. `size_n` and `size_m` are the tokens that are
// matched and drafted; 0 leaves the type's own defaults. Of "ngram-cache" they say nothing.
void * rule_new(const char * name, uint16_t size_n, uint16_t size_m) {
    common_log_set_verbosity_thold(-1);
    common_params_speculative params;
    const common_speculative_type type = common_speculative_type_from_name(name);
    if (type == COMMON_SPECULATIVE_TYPE_COUNT) {
        return nullptr;
    }
    params.types = { type };
    for (common_params_speculative_ngram_map * map : { &params.ngram_simple, &params.ngram_map_k, &params.ngram_map_k4v }) {
        map->size_n = size_n != 0 ? size_n : map->size_n;
        map->size_m = size_m != 0 ? size_m : map->size_m;
    }
    if (size_n != 0) {
        params.ngram_mod.n_match = size_n;
    }
    if (size_m != 0) {
        params.ngram_mod.n_max = size_m;
        params.ngram_mod.n_min = 1;
    }
    common_speculative * speculative = common_speculative_init(params, 1);
    return speculative == nullptr ? nullptr : new Rule { speculative, {}, 0, {} };
}

void rule_free(void * handle) {
    Rule * rule = static_cast<Rule *>(handle);
    common_speculative_free(rule->speculative);
    delete rule;
}

// A request begins with `length` tokens, at least one.
void rule_begin(void * handle, const int32_t * prompt, size_t length) {
    Rule & rule = *static_cast<Rule *>(handle);
    rule.text.assign(prompt, prompt + length - 1);
    rule.last = prompt[length - 1];
    common_speculative_begin(rule.speculative, 0, rule.text);
}

// Writes at most `budget` tokens to `draft`; returns how many.
size_t rule_propose(void * handle, size_t budget, int32_t * draft) {
    Rule & rule = *static_cast<Rule *>(handle);
    rule.draft.clear();
    common_speculative_draft_params & asked = common_speculative_get_draft_params(rule.speculative, 0);
    asked.drafting = true;
    asked.n_max    = (int32_t) budget;
    asked.pos0     = (llama_pos) rule.text.size();
    asked.id_last  = rule.last;
    asked.prompt   = &rule.text;
    asked.result   = &rule.draft;
    common_speculative_draft(rule.speculative);
    std::copy(rule.draft.begin(), rule.draft.end(), draft);
    return rule.draft.size();
}

// The text goes on by `length` tokens, at least one: accepted drafts, and the target's own.
void rule_accept(void * handle, const int32_t * tokens, size_t length) {
    Rule & rule = *static_cast<Rule *>(handle);
    if (!rule.draft.empty()) {
        common_speculative_accept(rule.speculative, 0, (uint16_t) (length - 1));
    }
    rule.text.push_back(rule.last);
    rule.text.insert(rule.text.end(), tokens, tokens + length - 1);
    rule.last = tokens[length - 1];
}

// Bytes that all rules hold, the text of this one left out.
int64_t rule_memory(void * handle) {
    const Rule & rule = *static_cast<Rule *>(handle);
    return held_bytes - (int64_t) (rule.text.capacity() * sizeof(llama_token));
}

}

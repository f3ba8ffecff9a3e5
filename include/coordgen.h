// coordgen: drafts for an engine that runs a language model itself, and history of what it said.
//
// Made of the crate's sources by cbindgen; do not edit.
//
// A drafter proposes how a request may go on, from lookups alone: no logits, no second model. The engine computes
// the draft in one run, accepts what it would have said itself, and tells what it has committed:
//
//     coordgen_options options = {.size = sizeof options, .vocab_size = 49152};
//     coordgen_drafter_new(&options, &drafter);
//     coordgen_drafter_begin(drafter, prompt, num_prompt, NULL, 0);
//     while (..) {
//         coordgen_drafter_propose_tree(drafter, tokens, parents, 16, &num_nodes);
//         .. run the nodes, walk from node 0 while a child is what the engine says ..
//         coordgen_drafter_accept(drafter, said, num_said);
//     }
//     coordgen_drafter_free(drafter);
//
// Errors: every call gives a status. One that fails changes nothing and writes nothing, but that a closed history
// is closed, and that indexing may have dropped the oldest requests before; `coordgen_last_error` says why. Where
// memory runs out, the process ends. Arrays may be NULL where their length is 0.
//
// Handles: numbers, 0 for none. One that was never given out, was closed, or is of the other kind is found out. They
// belong to the process that they were made in. A fork makes its own: of a parent's handle every call says so and does
// nothing, closing included, and a history that the parent has open stays in use.
//
// Threads: any thread may call any function at any time. Calls on one handle wait for each other; those on different
// drafters do not, but for `coordgen_drafter_begin` over one history: the first takes in what was appended since, at
// 0.3 us a token, and others wait for that. A drafter is for one request at a time: engines of many have a
// drafter for each, over one history. The message of `coordgen_last_error` is the thread's own.

#ifndef COORDGEN_H
#define COORDGEN_H

#include <stddef.h>
#include <stdint.h>

// Most tokens of a request, prompt and answer together, of a prediction and of a document.
#define COORDGEN_MAX_TOKENS (1 << 24)

// Most rows of a step.
#define COORDGEN_MAX_ROWS 4096

// What became of a call.
typedef enum coordgen_status {
  // It did what it says.
  COORDGEN_STATUS_OK = 0,
  // An address is NULL where something is needed, or is not aligned.
  COORDGEN_STATUS_BAD_POINTER = 1,
  // The handle is of no drafter, or of no history: never given out, closed, or of the other kind.
  COORDGEN_STATUS_BAD_HANDLE = 2,
  // An array is too long, too short, or empty where it must not be.
  COORDGEN_STATUS_BAD_LENGTH = 3,
  // A token id is negative, or beyond the vocabulary.
  COORDGEN_STATUS_BAD_TOKEN = 4,
  // An option has a value outside its range.
  COORDGEN_STATUS_BAD_OPTION = 5,
  // There is no request: call `coordgen_drafter_begin` first.
  COORDGEN_STATUS_NO_REQUEST = 6,
  // A file cannot be read or written, or is no history.
  COORDGEN_STATUS_FILE = 7,
  // The history's file is open elsewhere, in this process or in another one.
  COORDGEN_STATUS_IN_USE = 8,
  // There are too many handles.
  COORDGEN_STATUS_FULL = 9,
  // A defect of this library; the handle that it was met with can only be closed.
  COORDGEN_STATUS_BROKEN = 10,
  // The handle is of the process that this one is a fork of, to which it belongs: make one here.
  COORDGEN_STATUS_FORKED = 11,
} coordgen_status;

// How the engine keeps what it accepts of a tree; of chains both keep the same.
typedef enum coordgen_commit {
  // It keeps an accepted path on any branch.
  COORDGEN_COMMIT_COMPACT = 0,
  // It keeps what lies on the first path alone (nodes 0, 1, 2, ..): for engines in which a token that
  // was computed on a side branch has other bits than the same token in a chain.
  COORDGEN_COMMIT_CANONICAL = 1,
} coordgen_commit;

// Options of a drafter. Set all of it to zero, then `size` and `vocab_size`: a zero is the default.
typedef struct coordgen_options {
  // `sizeof(coordgen_options)`, by which a library of another version is found out.
  size_t size;
  // Number of ids in the engine's vocabulary, 1 to 2^24.
  uint32_t vocab_size;
  // A `coordgen_commit`.
  uint32_t commit;
  // Numbers of rows that a step of the engine may have, ascending: the last committed token, and
  // draft tokens behind it. NULL for 1 to 17.
  const uint32_t *rows;
  // Elements of `rows`; at most `COORDGEN_MAX_ROWS`, which no row is above either.
  size_t num_rows;
  // What a step of each costs, in any unit, `num_rows` elements: then drafts are only as long as pays.
  // NULL where rows are free. With `rows` NULL, of 1 to 17 rows.
  const float *costs;
  // What each costs more for every committed token, `num_rows` elements; NULL for nothing.
  const float *costs_per_token;
  // Tokens that end an answer: nothing is drafted behind them.
  const int32_t *end_tokens;
  // Elements of `end_tokens`.
  size_t num_end_tokens;
  // The name of a method, "auto", "automaton" or "prompt-lookup" say; NULL for "auto".
  const char *method;
  // A history to draft from as well, which may be closed while the drafter lives; 0 for none.
  uint64_t history;
} coordgen_options;

// What came of the proposals of a request.
typedef struct coordgen_statistics {
  // Tokens of the request, prompt and committed ones.
  size_t num_tokens;
  // How many of them are the prompt.
  size_t prompt_len;
  // Proposals that the engine has answered.
  size_t num_steps;
  // Draft tokens in them.
  size_t num_drafted;
  // Draft tokens that the engine agreed with.
  size_t num_accepted;
  // Bytes that the drafter holds, what it shares with others included.
  size_t memory_bytes;
} coordgen_statistics;

// What a history holds.
typedef struct coordgen_history_counts {
  // Tokens that are stored.
  size_t num_tokens;
  // How many of them the index covers.
  size_t num_indexed_tokens;
  // Bytes of the file that were damaged or cut off when it was opened, and are dropped.
  uint64_t num_dropped_bytes;
} coordgen_history_counts;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Why the last call of this thread that failed did so, in UTF-8; empty where none has. It stays until the
// next call of the thread that fails, or the thread ends.
const char *coordgen_last_error(void);

// A name for a status, "bad token" say; "unknown" for any other number. It stays for ever.
const char *coordgen_status_name(int32_t status);

// The library's version, "0.2.0" say. It stays for ever.
const char *coordgen_version(void);

// Makes a drafter, and writes its handle to `drafter`.
//
// # Safety
// `options` is NULL, or its arrays have the lengths that it tells; `drafter` is NULL or can be written.
enum coordgen_status coordgen_drafter_new(const struct coordgen_options *options,
                                          uint64_t *drafter);

// Starts a request, in place of the one before: `prompt`, at least one token, of which the last is the first
// root of a draft, and the caller's own prediction of the answer, which may be empty. What was learned of how
// far its sources can be trusted stays. Cost: about 0.2 us a token.
//
// Where it fails, the request before goes on.
//
// # Safety
// The arrays have the lengths that are told.
enum coordgen_status coordgen_drafter_begin(uint64_t drafter,
                                            const int32_t *prompt,
                                            size_t num_prompt,
                                            const int32_t *prediction,
                                            size_t num_prediction);

// Drafts a tree of at most `capacity` nodes, and fewer where no more pays or nothing more is known. Node 0 is the
// root, the last committed token; every parent stands before its children, and `parents[0]` is 0.
// Asking again replaces the proposal.
//
// # Safety
// `tokens` and `parents` have room for `capacity` elements, `num_nodes` for one.
enum coordgen_status coordgen_drafter_propose_tree(uint64_t drafter,
                                                   int32_t *tokens,
                                                   uint32_t *parents,
                                                   size_t capacity,
                                                   size_t *num_nodes);

// The same without branches: `tokens[0]` is the last committed token, and each of the others follows the one
// before it.
//
// # Safety
// `tokens` has room for `capacity` elements, `num_tokens` for one.
enum coordgen_status coordgen_drafter_propose_chain(uint64_t drafter,
                                                    int32_t *tokens,
                                                    size_t capacity,
                                                    size_t *num_tokens);

// Learns what the engine has committed since the last call: the draft tokens that it agreed with and its own next
// one, or any others. The last of them is the next root.
//
// # Safety
// `tokens` has `num_tokens` elements.
enum coordgen_status coordgen_drafter_accept(uint64_t drafter,
                                             const int32_t *tokens,
                                             size_t num_tokens);

// Forgets all but the first `num_tokens` tokens of the request, at least one, and what was learned from the others.
// Cost: as much as beginning anew, and a proposal for each that was answered.
enum coordgen_status coordgen_drafter_rewind(uint64_t drafter,
                                             size_t num_tokens);

// For engines that tell their whole text each time: begins, accepts and rewinds as the text asks for.
//
// # Safety
// `text` has `num_tokens` elements.
enum coordgen_status coordgen_drafter_follow(uint64_t drafter,
                                             const int32_t *text,
                                             size_t num_tokens);

// Gives up the request, if there is one, and what of a history it holds. What was learned of the sources stays.
enum coordgen_status coordgen_drafter_end(uint64_t drafter);

// Writes what came of the proposals of the request to `statistics`; after its end, of the last one, but for
// `num_tokens` and `prompt_len`, which are 0 then.
//
// # Safety
// `statistics` is NULL or can be written.
enum coordgen_status coordgen_drafter_statistics(uint64_t drafter,
                                                 struct coordgen_statistics *statistics);

// Ends a drafter. A call that another thread has begun comes to its end.
enum coordgen_status coordgen_drafter_free(uint64_t drafter);

// Opens the history at `path` (in UTF-8 on Windows), or makes an empty one, and writes its handle to `history`.
// NULL is a history in memory, of about the last two million tokens. The file has an index beside it,
// `PATH.index`. One handle at a time may have it open, of all processes. Its tokens are below
// `vocab_size`. Where it holds more than `max_tokens` (0 for ten million) as it is opened or indexed, the
// oldest requests are dropped; appending drops none. Of requests that no index covers, the last one to two
// million tokens are drafted from: a program that runs long calls `coordgen_history_index` now and then.
//
// # Safety
// `path` is NULL or ends with a zero; `history` is NULL or can be written.
enum coordgen_status coordgen_history_open(const char *path,
                                           uint32_t vocab_size,
                                           uint64_t max_tokens,
                                           uint64_t *history);

// Stores a finished request, prompt and answer together. Requests that begin later draft from it.
//
// # Safety
// `tokens` has `num_tokens` elements.
enum coordgen_status coordgen_history_append(uint64_t history,
                                             const int32_t *tokens,
                                             size_t num_tokens);

// Indexes what is stored; closing does it where that pays. Drafters go on meanwhile, other calls on the history
// wait. Cost: 0.1 to 0.3 us and 16 bytes of memory a token.
enum coordgen_status coordgen_history_index(uint64_t history);

// Writes what the history holds to `statistics`.
//
// # Safety
// `statistics` is NULL or can be written.
enum coordgen_status coordgen_history_statistics(uint64_t history,
                                                 struct coordgen_history_counts *statistics);

// Forgets all requests, in the file, too.
enum coordgen_status coordgen_history_clear(uint64_t history);

// Closes a history. Drafters that use it draft on from what it held. Where the index cannot be written, this says
// so, but the handle is gone and no request is lost.
enum coordgen_status coordgen_history_close(uint64_t history);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* COORDGEN_H */

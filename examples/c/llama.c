// llama.cpp with drafts, through its C interface and ours.
//
//     llama MODEL PROMPT.. [-n TOKENS] [-r ROWS] [-c CONTEXT] [-t THREADS] [--free] [--trees] [--compact] [--f32]
//           [--plain]
//
// Each PROMPT is a file that holds the text as the model wants it, chat template included. Every answer is generated
// twice, plainly and with drafts, and the two are compared; with --plain only plainly. The answer is written
// to standard output, figures to standard error. The exit status is 3 where an answer differs.
//
// Steps of 1, 2, 4, .. ROWS rows are timed first, and drafts are as long as pays; with --free, rows cost nothing, as on
// a GPU. A draft is a chain; with --trees a tree, whose branches are sequences of llama.cpp's: a token carries the ids of all
// branches that go through it. Of a tree only what lies on the first path is kept, unless --compact says
// otherwise: a token computed on another branch stands in another cell, and may have other bits there.

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordgen.h"
#include "llama.h"

#define MOST_ROWS 64

typedef struct {
  const char *model;
  int num_new, rows, context, threads;
  bool free_rows, trees, compact, f32, plain;
} settings;

typedef struct {
  struct llama_context *context;
  const struct llama_vocab *vocab;
  struct llama_batch batch;
  int vocab_size, num_sequences, num_committed;
} engine;

typedef struct {
  int32_t *tokens;
  int num_tokens, num_steps;
  double seconds;
} answer;

static void fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void check(coordgen_status status) {
  if (status != COORDGEN_STATUS_OK) fail(coordgen_last_error());
}

static double now(void) {
  struct timespec time;
  timespec_get(&time, TIME_UTC);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

// The likeliest token after a row of the last batch, the first of equals.
static int32_t likeliest(const engine *engine, int row) {
  const float *scores = llama_get_logits_ith(engine->context, row);
  int32_t best = 0;
  for (int32_t token = 1; token < engine->vocab_size; token++) {
    if (scores[token] > scores[best]) best = token;
  }
  return best;
}

static void add_row(engine *engine, int32_t token, int position, bool is_asked) {
  struct llama_batch *batch = &engine->batch;
  batch->token[batch->n_tokens] = token;
  batch->pos[batch->n_tokens] = position;
  batch->n_seq_id[batch->n_tokens] = 0;
  batch->logits[batch->n_tokens] = is_asked;
  batch->n_tokens++;
}

static void join(engine *engine, int row, int sequence) {
  struct llama_batch *batch = &engine->batch;
  batch->seq_id[row][batch->n_seq_id[row]++] = sequence;
}

static void run(engine *engine) {
  if (llama_decode(engine->context, engine->batch) != 0) fail("llama_decode fails");
  engine->batch.n_tokens = 0;
}

// Reads a prompt; gives what the model says after it.
static int32_t read_prompt(engine *engine, const int32_t *prompt, int len, int most) {
  llama_memory_clear(llama_get_memory(engine->context), false);
  int row = 0;
  for (int start = 0; start < len; start += most) {
    for (row = 0; row < most && start + row < len; row++) {
      add_row(engine, prompt[start + row], start + row, start + row + 1 == len);
      for (int sequence = 0; sequence < engine->num_sequences; sequence++) join(engine, row, sequence);
    }
    run(engine);
  }
  engine->num_committed = len;
  return likeliest(engine, row - 1);
}

// Runs a draft; each leaf, in turns, has one of the sequences or several.
static void run_tree(engine *engine, const int32_t *tokens, const uint32_t *parents, int num_nodes) {
  int depths[MOST_ROWS] = {0}, leaves[MOST_ROWS], num_leaves = 0;
  bool is_parent[MOST_ROWS] = {false};
  for (int node = 0; node < num_nodes; node++) {
    if (node > 0) {
      depths[node] = depths[parents[node]] + 1;
      is_parent[parents[node]] = true;
    }
    add_row(engine, tokens[node], engine->num_committed + depths[node], true);
  }
  for (int node = 0; node < num_nodes; node++) {
    if (!is_parent[node]) leaves[num_leaves++] = node;
  }
  for (int sequence = 0; sequence < engine->num_sequences; sequence++) {
    int node = leaves[sequence % num_leaves];
    for (; node > 0; node = parents[node]) join(engine, node, sequence);
    join(engine, 0, sequence);
  }
  run(engine);
}

// Keeps the path down to a node, in all sequences, and drops the other nodes.
static void keep(engine *engine, const uint32_t *parents, int num_nodes, int node, int num_rows) {
  llama_memory_t memory = llama_get_memory(engine->context);
  int start = engine->num_committed, end = start + num_rows, owner = 0;
  bool is_shared = true;
  if (engine->num_sequences > 1) {
    for (int other = node + 1; is_shared && other < num_nodes; other++) {
      is_shared = (int)parents[other] == other - 1;  // a chain is in all of them
    }
    for (int other = 1; is_shared && other <= node; other++) {
      is_shared = (int)parents[other] == other - 1;
    }
  }
  if (!is_shared) {
    owner = engine->batch.seq_id[node][0];
    for (int other = 0; other < engine->num_sequences; other++) {
      if (other != owner) llama_memory_seq_rm(memory, other, start, -1);
    }
  }
  llama_memory_seq_rm(memory, is_shared ? -1 : owner, end, -1);
  for (int other = 0; !is_shared && other < engine->num_sequences; other++) {
    if (other != owner) llama_memory_seq_cp(memory, owner, other, start, end);
  }
  engine->num_committed = end;
}

// Walks from the root while a child is what the model says. Gives what it says, and the last node that it reached.
static int verify(const engine *engine, const int32_t *tokens, const uint32_t *parents, int num_nodes,
                  bool first_path, int most, int32_t *said, int *last) {
  int num_said = 0, node = 0;
  for (int next = 1; num_said < most; next = node + 1) {
    said[num_said] = likeliest(engine, node);
    if (llama_vocab_is_eog(engine->vocab, said[num_said++])) break;
    if (num_said == most) break;
    while (next < num_nodes && ((int)parents[next] != node || tokens[next] != said[num_said - 1])) next++;
    if (next >= num_nodes || (first_path && next != node + 1)) break;
    node = next;
  }
  *last = node;
  return num_said;
}

// Microseconds of a step with each number of rows behind a prompt: the least of some runs. Costs never fall, as more
// rows are never less work.
static void measure(engine *engine, const uint32_t *rows, int num_rows, float *costs) {
  int32_t tokens[128];
  uint32_t parents[MOST_ROWS] = {0};
  for (int index = 0; index < 128; index++) tokens[index] = index * 37 % engine->vocab_size;
  for (int node = 1; node < MOST_ROWS; node++) parents[node] = node - 1;
  read_prompt(engine, tokens, 128, 128);
  for (int round = 0; round < 6; round++) {
    for (int index = 0; index < num_rows; index++) {
      double start = now();
      run_tree(engine, tokens, parents, rows[index]);
      likeliest(engine, 0);
      float cost = 1e6 * (now() - start);
      if (round == 1 || (round > 1 && cost < costs[index])) costs[index] = cost;
      llama_memory_seq_rm(llama_get_memory(engine->context), -1, engine->num_committed, -1);
    }
  }
  for (int index = 1; index < num_rows; index++) {
    if (costs[index] < costs[index - 1]) costs[index] = costs[index - 1];
  }
}

static bool has_ended(const engine *engine, const answer *answer, int most) {
  return answer->num_tokens >= most ||
         llama_vocab_is_eog(engine->vocab, answer->tokens[answer->num_tokens - 1]);
}

// An answer of `most` tokens at most, drafted by `drafter`, or plain where that is 0.
static answer generate(engine *engine, uint64_t drafter, const settings *set, const int32_t *prompt,
                       int len) {
  answer answer = {calloc(set->num_new, sizeof *prompt), 0, 0, 0};
  int32_t tokens[MOST_ROWS];
  uint32_t parents[MOST_ROWS];
  answer.tokens[answer.num_tokens++] = read_prompt(engine, prompt, len, 512);
  if (drafter) {
    check(coordgen_drafter_begin(drafter, prompt, len, NULL, 0));
    check(coordgen_drafter_accept(drafter, answer.tokens, 1));
  }
  double start = now();
  while (!has_ended(engine, &answer, set->num_new)) {
    int left = set->num_new - answer.num_tokens, last = 0;
    size_t num_nodes = 1, most = left < set->rows ? left : set->rows;
    tokens[0] = answer.tokens[answer.num_tokens - 1];
    parents[0] = 0;
    if (drafter && set->trees) {
      check(coordgen_drafter_propose_tree(drafter, tokens, parents, most, &num_nodes));
    } else if (drafter) {
      check(coordgen_drafter_propose_chain(drafter, tokens, most, &num_nodes));
      for (size_t node = 1; node < num_nodes; node++) parents[node] = node - 1;
    }
    run_tree(engine, tokens, parents, num_nodes);
    int32_t *said = answer.tokens + answer.num_tokens;
    int num_said = verify(engine, tokens, parents, num_nodes, !set->compact, left, said, &last);
    keep(engine, parents, num_nodes, last, num_said);
    if (drafter) check(coordgen_drafter_accept(drafter, said, num_said));
    answer.num_tokens += num_said;
    answer.num_steps++;
  }
  answer.seconds = now() - start;
  return answer;
}

static void print(const engine *engine, const answer *answer) {
  for (int index = 0; index < answer->num_tokens; index++) {
    char piece[256];
    int32_t token = answer->tokens[index];
    int num_bytes = llama_token_to_piece(engine->vocab, token, piece, sizeof piece, 0, false);
    if (num_bytes > 0) fwrite(piece, 1, num_bytes, stdout);
  }
  printf("\n");
}

static void report(const char *name, const answer *answer) {
  int num_new = answer->num_tokens - 1;
  fprintf(stderr, "  %-8s %3d tokens in %3d steps, %5.1f tokens/s\n", name, num_new, answer->num_steps,
          num_new / answer->seconds);
}

// The tokens of a file.
static int read_tokens(const engine *engine, const char *path, int32_t *tokens, int most) {
  char text[1 << 16];
  FILE *file = fopen(path, "rb");
  if (file == NULL) fail(path);
  size_t num_bytes = fread(text, 1, sizeof text, file);
  if (ferror(file) || fgetc(file) != EOF) fail("the prompt cannot be read, or is longer than 64 KiB");
  fclose(file);
  int num = llama_tokenize(engine->vocab, text, num_bytes, tokens, most, true, true);
  if (num <= 0) fail("the prompt is empty, or too long for the context");
  return num;
}

static void quiet(enum ggml_log_level level, const char *text, void *data) {
  (void)data;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int parse(int argc, char **argv, settings *set, const char **prompts) {
  int num_prompts = 0;
  for (int index = 1; index < argc; index++) {
    const char *option = argv[index];
    int *number = !strcmp(option, "-n")   ? &set->num_new
                  : !strcmp(option, "-r") ? &set->rows
                  : !strcmp(option, "-c") ? &set->context
                  : !strcmp(option, "-t") ? &set->threads
                                          : NULL;
    bool *flag = !strcmp(option, "--free")      ? &set->free_rows
                 : !strcmp(option, "--trees")   ? &set->trees
                 : !strcmp(option, "--compact") ? &set->compact
                 : !strcmp(option, "--f32")     ? &set->f32
                 : !strcmp(option, "--plain")   ? &set->plain
                                                : NULL;
    if (number && index + 1 < argc) {
      *number = atoi(argv[++index]);
    } else if (flag) {
      *flag = true;
    } else if (set->model == NULL) {
      set->model = option;
    } else {
      prompts[num_prompts++] = option;
    }
  }
  return num_prompts;
}

int main(int argc, char **argv) {
  settings set = {.num_new = 64, .rows = 8, .context = 2048, .threads = 1};
  const char **prompts = calloc(argc, sizeof *prompts);
  int num_prompts = parse(argc, argv, &set, prompts);
  if (num_prompts == 0 || set.num_new < 1 || set.rows < 1 || set.rows > MOST_ROWS) {
    fail("usage: llama MODEL PROMPT.. [-n TOKENS] [-r ROWS] [-c CONTEXT] [-t THREADS] "
         "[--free] [--trees] [--compact] [--f32] [--plain]");
  }
  llama_log_set(quiet, NULL);
  llama_backend_init();
  struct llama_model *model = llama_model_load_from_file(set.model, llama_model_default_params());
  if (model == NULL) fail("llama.cpp cannot open the model");
  if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) {
    fail("the model has recurrent layers, whose state cannot be taken back: drafts cannot be dropped");
  }
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = set.context;
  params.n_threads = params.n_threads_batch = set.threads;
  params.n_seq_max = set.trees ? set.rows : 1;
  params.kv_unified = true;  // branches of a tree share what stands before it
  params.swa_full = true;
  if (set.f32) params.type_k = params.type_v = GGML_TYPE_F32;
  engine engine = {.context = llama_init_from_model(model, params), .num_sequences = params.n_seq_max};
  if (engine.context == NULL) fail("llama.cpp cannot make the context");
  engine.vocab = llama_model_get_vocab(model);
  engine.vocab_size = llama_vocab_n_tokens(engine.vocab);
  engine.batch = llama_batch_init(512, 0, engine.num_sequences);

  uint64_t drafter = 0;
  coordgen_options options = {.size = sizeof options, .vocab_size = engine.vocab_size,
                              .commit = set.compact ? COORDGEN_COMMIT_COMPACT : COORDGEN_COMMIT_CANONICAL};
  uint32_t rows[8];
  float costs[8];
  int num_rows = 0;
  for (int width = 1; width < set.rows; width *= 2) rows[num_rows++] = width;
  rows[num_rows++] = set.rows;
  options.rows = rows;
  options.num_rows = num_rows;
  if (!set.free_rows && !set.plain) {
    measure(&engine, rows, num_rows, costs);
    options.costs = costs;
    for (int index = 0; index < num_rows; index++) {
      fprintf(stderr, "a step of %2u rows takes %.1f ms\n", rows[index], costs[index] / 1e3);
    }
  }
  check(coordgen_drafter_new(&options, &drafter));
  int num_other = 0;
  int32_t *prompt = calloc(set.context, sizeof *prompt);
  for (int index = 0; index < num_prompts; index++) {
    int len = read_tokens(&engine, prompts[index], prompt, set.context - set.num_new - set.rows);
    answer plain = generate(&engine, 0, &set, prompt, len);
    fprintf(stderr, "%s: %d tokens\n", prompts[index], len);
    report("plain", &plain);
    print(&engine, &plain);
    if (!set.plain) {
      answer drafted = generate(&engine, drafter, &set, prompt, len);
      report("drafted", &drafted);
      int num_equal = 0;
      while (num_equal < plain.num_tokens && num_equal < drafted.num_tokens &&
             plain.tokens[num_equal] == drafted.tokens[num_equal]) {
        num_equal++;
      }
      if (num_equal < plain.num_tokens || num_equal < drafted.num_tokens) {
        fprintf(stderr, "  other tokens from the %dth on\n", num_equal + 1);
        num_other++;
      }
      free(drafted.tokens);
    }
    free(plain.tokens);
  }
  if (!set.plain) fprintf(stderr, "%d of %d answers equal the plain ones\n", num_prompts - num_other, num_prompts);
  check(coordgen_drafter_free(drafter));
  llama_batch_free(engine.batch);
  llama_free(engine.context);
  llama_model_free(model);
  free(prompt);
  free(prompts);
  return num_other ? 3 : 0;
}

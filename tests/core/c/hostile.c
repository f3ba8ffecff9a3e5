// Random calls with bad handles, lengths, addresses and ids: every one gives a status, and none ends the process.
//
//     hostile CALLS FOLDER

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordgen.h"

#define ROOM 64
#define HELD 16

static uint64_t state = 20240817;

static uint64_t draw(uint64_t below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (state >> 11) % below;
}

static uint64_t handles[HELD];

// A live one, a stale one, one of the other kind, or none at all.
static uint64_t handle(void) {
  uint64_t held = handles[draw(HELD)];
  switch (draw(8)) {
    case 0: return state;
    case 1: return draw(64);
    case 2: return held ^ (1ull << draw(64));
    default: return held;
  }
}

// A length that the arrays have, or one that no array may have.
static size_t length(void) {
  static const size_t beyond[] = {COORDGEN_MAX_TOKENS + 1, SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4 + 1};
  return draw(8) ? draw(ROOM + 1) : beyond[draw(4)];
}

static int32_t *tokens(int32_t *array) {
  for (int index = 0; index < ROOM; index++) {
    array[index] = draw(500) ? (int32_t)draw(12) : (int32_t)state;
  }
  return draw(12) ? array : draw(2) ? NULL : (int32_t *)((char *)array + 1);
}

static coordgen_status make(void *record, const char *path, uint64_t *out) {
  if (draw(3) == 0) return coordgen_history_open(draw(3) ? NULL : path, draw(3) ? 12 : draw(1 << 25), draw(500), out);
  int32_t ends[ROOM];
  uint32_t rows[] = {1, 2, 4, (uint32_t)draw(10)};
  float costs[] = {1, 2, draw(9) ? 3 : -1, 4}, further[] = {0, 0, 1, 1};
  const char *methods[] = {NULL, "auto", "automaton", "prompt-lookup", "sam", "diaa", "\xff", "plain"};
  coordgen_options *options = record;
  memset(options, 0, sizeof *options);
  options->size = draw(20) ? sizeof *options : draw(100);
  options->vocab_size = draw(8) ? 12 : (uint32_t)draw(1 << 25);
  options->commit = draw(20) ? draw(2) : state;
  if (draw(2)) options->rows = rows;
  if (draw(2)) options->num_rows = draw(8) ? draw(5) : length() > ROOM ? SIZE_MAX : 0;
  if (draw(2) && options->num_rows <= 4 && options->rows) options->costs = costs;
  if (draw(2) && options->num_rows <= 4) options->costs_per_token = further;
  if (draw(4) == 0) options->end_tokens = tokens(ends), options->num_end_tokens = draw(ROOM);
  options->method = methods[draw(3) ? draw(3) : draw(8)];
  if (draw(2)) options->history = handle();
  return coordgen_drafter_new(draw(30) ? options : NULL, out);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  char path[1024];
  snprintf(path, sizeof path, "%s/history", argv[2]);
  long num_calls = strtol(argv[1], NULL, 10), counts[11] = {0};
  for (long call = 0; call < num_calls; call++) {
    // Of their own, so that an access beside them is seen.
    int32_t *one = malloc((ROOM + 1) * sizeof *one), *other = malloc((ROOM + 1) * sizeof *other);
    uint32_t parents[ROOM];
    coordgen_options options;
    coordgen_statistics statistics;
    coordgen_history_counts stored;
    size_t num = 0, room = draw(ROOM + 1), *out = draw(30) ? &num : NULL;
    uint64_t made = 0;
    coordgen_status status;
    memset(parents, 0xa5, sizeof parents);
    switch (draw(16)) {
      case 0:
        status = make(&options, path, draw(30) ? &made : NULL);
        if (made) {
          uint64_t *place = &handles[draw(HELD)];
          if (draw(2)) coordgen_drafter_free(*place), coordgen_history_close(*place);
          *place = made;
        }
        break;
      case 1:
      case 2: status = coordgen_drafter_begin(handle(), tokens(one), length(), tokens(other), length()); break;
      case 3:
      case 4:
      case 5: status = coordgen_drafter_propose_tree(handle(), tokens(one), draw(30) ? parents : NULL, room, out); break;
      case 6:
      case 7: status = coordgen_drafter_propose_chain(handle(), tokens(one), room, out); break;
      case 8:
      case 9: status = coordgen_drafter_accept(handle(), tokens(one), length()); break;
      case 10: status = coordgen_drafter_rewind(handle(), length()); break;
      case 11: status = coordgen_drafter_follow(handle(), tokens(one), length()); break;
      case 12: status = coordgen_drafter_statistics(handle(), draw(20) ? &statistics : NULL); break;
      case 13: status = coordgen_history_append(handle(), tokens(one), length()); break;
      case 14:
        status = draw(2) ? coordgen_history_statistics(handle(), draw(20) ? &stored : NULL)
                         : coordgen_history_index(handle());
        break;
      default:
        status = draw(4) ? coordgen_drafter_end(handle())
                 : draw(3) ? coordgen_drafter_free(handle())
                 : draw(2) ? coordgen_history_clear(handle())
                           : coordgen_history_close(handle());
    }
    if (status < 0 || status > COORDGEN_STATUS_BROKEN || num > room) return 1;
    for (size_t node = room; node < ROOM; node++)
      if (parents[node] != 0xa5a5a5a5u) return 1;
    if (status != COORDGEN_STATUS_OK && strlen(coordgen_last_error()) == 0) return 1;
    if (status == COORDGEN_STATUS_BROKEN) return fprintf(stderr, "%s\n", coordgen_last_error()), 1;
    counts[status]++;
    free(one);
    free(other);
  }
  for (int held = 0; held < HELD; held++) {
    coordgen_drafter_free(handles[held]);
    coordgen_history_close(handles[held]);
  }
  for (int status = 0; status < 11; status++) printf("%ld %s\n", counts[status], coordgen_status_name(status));
  return 0;
}

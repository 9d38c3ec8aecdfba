/* Models, sessions, answers and errors for a while: soak FOLDER BACKEND SECONDS SETTLE. Prints memory,
   descriptors and threads, and ends with 1 if one of them grows by more than 10 % after SETTLE
   seconds. Linux only. */
#define _POSIX_C_SOURCE 200809L

#include "../capi/check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Answers of one model, and of one session. */
#define ANSWERS_OF_MODEL 50
#define ANSWERS_OF_SESSION 7

enum { MEMORY, DESCRIPTORS, THREADS, KINDS };
static const char *const names[KINDS] = {"memory_kb", "descriptors", "threads"};

static double seconds(void) {
    struct timespec t;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &t) == 0);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static long entries(const char *folder) {
    DIR *dir = opendir(folder);
    long count = -2;
    CHECK(dir != NULL);
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

static long resident_kb(void) {
    long pages[2] = {0};
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld %ld", &pages[0], &pages[1]) == 2);
    fclose(file);
    return pages[1] * (sysconf(_SC_PAGESIZE) / 1024);
}

static int ignore(const char *text, size_t length, void *user) {
    (void)text;
    (void)length;
    (void)user;
    return 0;
}

static int stop(const char *text, size_t length, void *user) {
    (void)text;
    (void)length;
    (void)user;
    return 1;
}

static tlite_model *load(const char *folder, const char *backend) {
    tlite_load_options options;
    tlite_model *model;
    CHECK(tlite_load_defaults(&options, sizeof options) == 0);
    options.backend = backend;
    options.context = 48;
    model = tlite_model_load(folder, &options);
    CHECK(model != NULL);
    return model;
}

/* Right answers, sampled or not, cancelled ones, and errors. */
static void answer(const tlite_session *session, long i) {
    char prompt[32];
    tlite_message message = {"user", prompt, NULL};
    tlite_generate_options options;
    CHECK(tlite_generate_defaults(&options, sizeof options) == 0);
    snprintf(prompt, sizeof prompt, "hello %ld", i % 1000);
    options.max_tokens = (size_t)(2 + i % 5);
    options.temperature = i % 3 == 0 ? 0.0f : 0.8f;
    options.seed = (uint64_t)i;
    switch (i % 8) {
    case 5:
        /* A sampled answer may be empty, and then ends by itself. */
        CHECK(tlite_generate(session, prompt, &options, stop, NULL) != TLITE_FINISH_ERROR);
        break;
    case 6:
        tlite_cancel(session);
        CHECK(tlite_generate(session, prompt, &options, ignore, NULL) == TLITE_FINISH_CANCELLED);
        break;
    case 7:
        options.template_values = "{";
        CHECK(tlite_chat(session, &message, 1, &options, ignore, NULL) == TLITE_FINISH_ERROR);
        CHECK(tlite_model_load("no/such/folder", NULL) == NULL);
        break;
    default:
        CHECK((i % 2 ? tlite_chat(session, &message, 1, &options, ignore, NULL)
                     : tlite_generate(session, prompt, &options, ignore, NULL)) != TLITE_FINISH_ERROR);
    }
}

int main(int argc, char **argv) {
    long most[2][KINDS] = {{0}}, count = 0;
    int grown = 0;
    double start = seconds(), limit, settle, next = 0;
    tlite_model *model = NULL;
    tlite_session *session = NULL;
    if (argc != 5) {
        fprintf(stderr, "soak FOLDER BACKEND SECONDS SETTLE\n");
        return 2;
    }
    limit = atof(argv[3]);
    settle = atof(argv[4]);
    for (; seconds() - start < limit; count++) {
        double now = seconds() - start;
        long found[KINDS];
        if (count % ANSWERS_OF_MODEL == 0) {
            tlite_session_free(session);
            session = NULL;
            tlite_model_free(model);
            model = load(argv[1], argv[2]);
        }
        if (count % ANSWERS_OF_SESSION == 0 || session == NULL) {
            tlite_session_free(session);
            session = tlite_session_new(model);
            CHECK(session != NULL);
        }
        answer(session, count);
        if (now < next) {
            continue;
        }
        next = now + 1;
        found[MEMORY] = resident_kb();
        found[DESCRIPTORS] = entries("/proc/self/fd");
        found[THREADS] = entries("/proc/self/task");
        for (int kind = 0; kind < KINDS; kind++) {
            long *place = &most[now >= settle][kind];
            *place = found[kind] > *place ? found[kind] : *place;
        }
        if ((long)now % 30 == 0) {
            printf("%s: %5.0f s, %ld answers, %ld kB, %ld descriptors, %ld threads\n", argv[2], now, count,
                   found[MEMORY], found[DESCRIPTORS], found[THREADS]);
            fflush(stdout);
        }
    }
    tlite_session_free(session);
    tlite_model_free(model);
    for (int kind = 0; kind < KINDS; kind++) {
        int grows = most[1][kind] * 10 > most[0][kind] * 11;
        printf("%s: %s: at most %ld before %.0f s, %ld after%s\n", argv[2], names[kind], most[0][kind], settle,
               most[1][kind], grows ? ": GROWS" : "");
        grown |= grows;
    }
    return grown;
}

/* Threads that share a model, and one session of it: threads FOLDER BACKEND [ROUNDS]. Ends with 1 if
   an answer differs from that of the same prompt before. */
#include "../capi/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 4

typedef struct {
    char text[1024];
    size_t length;
} answer;

static tlite_model *model;
/* Used by all threads at once. */
static tlite_session *shared;
static atomic_int finished;
static int rounds = 4;

static int collect(const char *text, size_t length, void *user) {
    answer *a = user;
    CHECK(a->length + length < sizeof a->text);
    memcpy(a->text + a->length, text, length);
    a->length += length;
    return 0;
}

static tlite_finish generate(const tlite_session *session, const char *prompt, answer *a) {
    tlite_generate_options options;
    CHECK(tlite_generate_defaults(&options, sizeof options) == 0);
    options.max_tokens = 6;
    return tlite_generate(session, prompt, &options, collect, a);
}

/* Answers in sessions of its own, and tries the shared one: others may use or cancel it. */
static void *work(void *argument) {
    const char *prompt = argument;
    answer first = {0};
    for (int i = 0; i < rounds; i++) {
        answer own = {0}, other = {0};
        tlite_session *session = tlite_session_new(model);
        tlite_finish finish;
        CHECK(session != NULL);
        CHECK(generate(session, prompt, &own) == TLITE_FINISH_MAX_TOKENS);
        if (i == 0) {
            first = own;
        }
        CHECK(own.length == first.length && memcmp(own.text, first.text, own.length) == 0);
        finish = generate(shared, "x", &other);
        CHECK(finish != TLITE_FINISH_ERROR || tlite_last_error_code() == TLITE_ERROR_BUSY);
        tlite_session_free(session);
    }
    atomic_fetch_add(&finished, 1);
    return NULL;
}

static void *cancel(void *argument) {
    (void)argument;
    while (atomic_load(&finished) < THREADS) {
        tlite_cancel(shared);
        tlite_session_clear(shared);
        tlite_cancel_clear(shared);
    }
    return NULL;
}

int main(int argc, char **argv) {
    char prompts[THREADS][16];
    pthread_t workers[THREADS], canceller;
    tlite_load_options options;
    tlite_session *last;
    answer a = {0};
    if (argc < 3) {
        fprintf(stderr, "threads FOLDER BACKEND [ROUNDS]\n");
        return 2;
    }
    if (argc > 3) {
        rounds = atoi(argv[3]);
    }
    CHECK(tlite_load_defaults(&options, sizeof options) == 0);
    options.backend = argv[2];
    options.context = 48;
    model = tlite_model_load(argv[1], &options);
    CHECK(model != NULL);
    shared = tlite_session_new(model);
    CHECK(shared != NULL);
    for (int i = 0; i < THREADS; i++) {
        snprintf(prompts[i], sizeof prompts[i], "hello %d", i);
        CHECK(pthread_create(&workers[i], NULL, work, prompts[i]) == 0);
    }
    CHECK(pthread_create(&canceller, NULL, cancel, NULL) == 0);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(workers[i], NULL) == 0);
    }
    CHECK(pthread_join(canceller, NULL) == 0);

    /* A session outlives its model. */
    last = tlite_session_new(model);
    CHECK(last != NULL);
    tlite_model_free(model);
    CHECK(generate(last, "hello", &a) == TLITE_FINISH_MAX_TOKENS);
    tlite_session_free(last);
    tlite_session_free(shared);
    CHECK(tlite_model_load("no/such/folder", NULL) == NULL);
    return 0;
}

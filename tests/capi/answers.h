/* Answers, and what errors say, for programs that use the C interface as a test. */
#ifndef ANSWERS_H
#define ANSWERS_H

#include "check.h"

#include <string.h>

/* What a callback collects. */
typedef struct {
    char text[4096];
    size_t length;
    int pieces;
    /* Ends the answer after so many pieces; 0 never. */
    int stop_after;
    /* Tries what must be refused while an answer is generated. */
    const tlite_session *inside;
} answer;

/* The last error carries a value: messages may be reworded, values stay. */
static inline int says(const char *value) {
    return strstr(tlite_last_error(), value) != NULL;
}

/* The last error is one of this argument or member of options, whose name comes first. */
static inline int names_option(const char *name) {
    size_t length = strlen(name);
    return strncmp(tlite_last_error(), name, length) == 0 && tlite_last_error()[length] == ':';
}

static inline int collect(const char *text, size_t length, void *user) {
    answer *a = user;
    CHECK(text[length] == 0);
    CHECK(a->length + length < sizeof a->text);
    memcpy(a->text + a->length, text, length);
    a->length += length;
    a->pieces++;
    if (a->inside != NULL) {
        CHECK(tlite_generate(a->inside, "x", NULL, collect, a) == TLITE_FINISH_ERROR);
        CHECK(tlite_last_error_code() == TLITE_ERROR_BUSY);
        CHECK(tlite_session_clear(a->inside) == -1);
        a->inside = NULL;
    }
    return a->stop_after > 0 && a->pieces >= a->stop_after;
}

static inline tlite_generate_options defaults(void) {
    tlite_generate_options options;
    CHECK(tlite_generate_defaults(&options, sizeof options) == 0);
    return options;
}

static inline answer generate(const tlite_session *session, size_t max_tokens, int stop_after, tlite_finish wanted) {
    answer a = {0};
    tlite_generate_options options = defaults();
    options.max_tokens = max_tokens;
    a.stop_after = stop_after;
    CHECK(tlite_generate(session, "hello", &options, collect, &a) == wanted);
    return a;
}

static inline int same(const answer *a, const answer *b) {
    return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

#endif

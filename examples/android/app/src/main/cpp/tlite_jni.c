/* JNI functions for class org.transformerlite.Native, on top of the C interface. Texts are passed as
 * UTF-8 bytes: JNI strings use modified UTF-8, which differs for characters such as emoji. */
#include "tlite.h"

#include <jni.h>
#include <stdlib.h>
#include <string.h>

#define NATIVE(result, name) JNIEXPORT result JNICALL Java_org_transformerlite_Native_##name

static void out_of_memory(JNIEnv *env) {
    jclass class = (*env)->FindClass(env, "java/lang/OutOfMemoryError");
    if (class != NULL) (*env)->ThrowNew(env, class, "transformer-lite: not enough memory for a text");
}

/* A zero-terminated copy of the bytes, to be freed; NULL for null and after an exception. */
static char *text_of(JNIEnv *env, jbyteArray bytes) {
    if (bytes == NULL) return NULL;
    jsize length = (*env)->GetArrayLength(env, bytes);
    char *text = malloc((size_t)length + 1);
    if (text == NULL) {
        out_of_memory(env);
        return NULL;
    }
    (*env)->GetByteArrayRegion(env, bytes, 0, length, (jbyte *)text);
    text[length] = 0;
    return text;
}

static jbyteArray bytes_of(JNIEnv *env, const char *text, size_t length) {
    jbyteArray bytes = (*env)->NewByteArray(env, (jsize)length);
    if (bytes != NULL) (*env)->SetByteArrayRegion(env, bytes, 0, (jsize)length, (const jbyte *)text);
    return bytes;
}

/* The log listener, a global reference. */
typedef struct {
    jobject object;
    jmethodID line;
} log_listener;

static JavaVM *machine;
static log_listener *logged;

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved) {
    (void)reserved;
    machine = vm;
    return JNI_VERSION_1_6;
}

/* The environment of this thread, which may belong to the library; NULL if memory is short. */
static JNIEnv *environment(int *attached) {
    void *env = NULL;
    *attached = 0;
    if ((*machine)->GetEnv(machine, &env, JNI_VERSION_1_6) == JNI_OK) return env;
#ifdef __ANDROID__
    JNIEnv *made = NULL;
#else
    void *made = NULL;
#endif
    *attached = (*machine)->AttachCurrentThread(machine, &made, NULL) == JNI_OK;
    return *attached ? made : NULL;
}

static void log_line(tlite_log_level level, const char *text, void *user) {
    const log_listener *to = user;
    int attached;
    JNIEnv *env = environment(&attached);
    if (env == NULL) return;
    /* These functions must not be called while an exception of the caller is pending. */
    if (!(*env)->ExceptionCheck(env)) {
        jbyteArray bytes = bytes_of(env, text, strlen(text));
        if (bytes != NULL) (*env)->CallVoidMethod(env, to->object, to->line, (jint)level, bytes);
        (*env)->ExceptionClear(env);
        (*env)->DeleteLocalRef(env, bytes);
    }
    if (attached) (*machine)->DetachCurrentThread(machine);
}

/* Must not be called from several threads at once. */
NATIVE(jboolean, setLog)(JNIEnv *env, jclass class, jobject listener) {
    (void)class;
    log_listener *next = NULL;
    if (listener != NULL) {
        jmethodID line = (*env)->GetMethodID(env, (*env)->GetObjectClass(env, listener), "line", "(I[B)V");
        if (line == NULL) return JNI_FALSE;
        next = malloc(sizeof *next);
        jobject object = (*env)->NewGlobalRef(env, listener);
        if (next == NULL || object == NULL) {
            free(next);
            if (object != NULL) (*env)->DeleteGlobalRef(env, object);
            out_of_memory(env);
            return JNI_FALSE;
        }
        next->object = object;
        next->line = line;
    }
    /* After this call the previous listener is no longer used. */
    jboolean set = tlite_set_log(next == NULL ? NULL : log_line, next) == 0;
    log_listener *gone = set ? logged : next;
    if (set) logged = next;
    if (gone != NULL) (*env)->DeleteGlobalRef(env, gone->object);
    free(gone);
    return set;
}

NATIVE(jbyteArray, lastError)(JNIEnv *env, jclass class) {
    (void)class;
    const char *text = tlite_last_error();
    return bytes_of(env, text, strlen(text));
}

NATIVE(jlong, modelLoad)(JNIEnv *env, jclass class, jbyteArray path, jbyteArray backend, jlong context, jbyteArray cache) {
    (void)class;
    char *path_text = text_of(env, path), *backend_text = text_of(env, backend), *cache_text = text_of(env, cache);
    tlite_model *model = NULL;
    if (!(*env)->ExceptionCheck(env)) {
        tlite_load_options options;
        if (tlite_load_defaults(&options, sizeof options) == 0) {
            options.backend = backend_text;
            options.context = (size_t)context;
            options.kernel_cache = cache_text;
            model = tlite_model_load(path_text, &options);
        }
    }
    free(path_text);
    free(backend_text);
    free(cache_text);
    return (jlong)model;
}

NATIVE(void, modelFree)(JNIEnv *env, jclass class, jlong model) {
    (void)env;
    (void)class;
    tlite_model_free((tlite_model *)model);
}

NATIVE(jlong, sessionNew)(JNIEnv *env, jclass class, jlong model) {
    (void)env;
    (void)class;
    return (jlong)tlite_session_new((const tlite_model *)model);
}

NATIVE(void, sessionFree)(JNIEnv *env, jclass class, jlong session) {
    (void)env;
    (void)class;
    tlite_session_free((tlite_session *)session);
}

NATIVE(void, cancel)(JNIEnv *env, jclass class, jlong session) {
    (void)env;
    (void)class;
    tlite_cancel((const tlite_session *)session);
}

NATIVE(void, cancelClear)(JNIEnv *env, jclass class, jlong session) {
    (void)env;
    (void)class;
    tlite_cancel_clear((const tlite_session *)session);
}

/* The listener of an answer. */
typedef struct {
    JNIEnv *env;
    jobject listener;
    jmethodID piece;
} listening;

static int piece(const char *text, size_t length, void *user) {
    listening *to = user;
    jbyteArray bytes = bytes_of(to->env, text, length);
    if (bytes == NULL) return 1;
    jboolean more = (*to->env)->CallBooleanMethod(to->env, to->listener, to->piece, bytes);
    (*to->env)->DeleteLocalRef(to->env, bytes);
    return (*to->env)->ExceptionCheck(to->env) || !more;
}

static void free_messages(tlite_message *messages, jsize count) {
    for (jsize i = 0; i < count; i++) {
        free((char *)messages[i].role);
        free((char *)messages[i].content);
    }
    free(messages);
}

/* Messages from texts with roles at even and contents at odd indices; NULL after an exception. */
static tlite_message *messages_of(JNIEnv *env, jobjectArray texts, jsize count) {
    tlite_message *messages = calloc((size_t)count + 1, sizeof *messages);
    if (messages == NULL) {
        out_of_memory(env);
        return NULL;
    }
    for (jsize i = 0; i < 2 * count; i++) {
        jbyteArray bytes = (*env)->GetObjectArrayElement(env, texts, i);
        char *text = text_of(env, bytes);
        (*env)->DeleteLocalRef(env, bytes);
        if (i % 2 == 0) {
            messages[i / 2].role = text;
        } else {
            messages[i / 2].content = text;
        }
        if ((*env)->ExceptionCheck(env)) {
            free_messages(messages, count);
            return NULL;
        }
    }
    return messages;
}

NATIVE(jint, chat)(JNIEnv *env, jclass class, jlong session, jobjectArray texts, jlong max_tokens, jfloat temperature, jboolean context_shift,
                   jobject listener) {
    (void)class;
    jsize count = (*env)->GetArrayLength(env, texts) / 2;
    listening to = {env, listener, NULL};
    to.piece = (*env)->GetMethodID(env, (*env)->GetObjectClass(env, listener), "piece", "([B)Z");
    if (to.piece == NULL) return TLITE_FINISH_ERROR;
    tlite_message *messages = messages_of(env, texts, count);
    if (messages == NULL) return TLITE_FINISH_ERROR;
    tlite_generate_options options;
    tlite_finish finish = TLITE_FINISH_ERROR;
    if (tlite_generate_defaults(&options, sizeof options) == 0) {
        options.max_tokens = (size_t)max_tokens;
        options.temperature = temperature;
        options.context_shift = context_shift;
        finish = tlite_chat((const tlite_session *)session, messages, (size_t)count, &options, piece, &to);
    }
    free_messages(messages, count);
    return finish;
}

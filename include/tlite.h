/* The C interface of Transformer-Lite. Made from src/capi.rs; change it there.
 *
 * Functions may be called from any thread. Strings that go in are UTF-8, end with a 0, belong to the caller and are read during the
 * call only. NULL where an object or a text is needed is an error and does no harm. What fails says so by what it returns, and
 * tlite_last_error says why. Models and sessions belong to the caller, who frees each once, with the function of its kind. */

#ifndef TLITE_H
#define TLITE_H

#include <stddef.h>
#include <stdint.h>

// Why an answer ended.
typedef enum {
  // It failed; `tlite_last_error` says why. Text that came before is valid.
  TLITE_FINISH_ERROR = -1,
  // The model ended it.
  TLITE_FINISH_END_OF_TEXT = 0,
  // A stop string came up.
  TLITE_FINISH_STOP_STRING = 1,
  // The largest number of tokens was generated.
  TLITE_FINISH_MAX_TOKENS = 2,
  // The cache has no room for another token.
  TLITE_FINISH_CONTEXT_FULL = 3,
  // `tlite_cancel` was called.
  TLITE_FINISH_CANCELLED = 4,
  // The callback asked for it.
  TLITE_FINISH_CALLBACK = 5,
} tlite_finish;

// A loaded model: weights, compiled kernels, tokenizer and chat template. Any number of sessions may share it, in any threads.
typedef struct tlite_model tlite_model;

// A sequence of tokens in a cache of its own. One call at a time generates with it; only `tlite_cancel` may be called meanwhile.
typedef struct tlite_session tlite_session;

// Where and how a model is loaded. Strings are UTF-8 and read during the call only.
typedef struct {
  // "auto", "opencl", "wgpu" or "host"; NULL is "auto", the best device there is.
  const char *backend;
  // The device of this name, else the one whose name or driver contains this text; NULL is the best one.
  const char *device;
  // Tokens that the cache of a session holds; 0 is what the model was made for, at most 4096.
  size_t context;
  // Storage of the cache on a device, "f16" or "q8"; NULL is "f16".
  const char *kv;
  // Lengths of decoding are padded to multiples of this, 32 to 256; 0 is 64.
  size_t padding;
  // Whose work the device does first, "low", "normal" or "high"; NULL is low on GPUs that share the host's memory, else the driver's.
  const char *priority;
  // Folder where compiled kernels are kept for the next start, 4 GB of them at most; nobody else should be able to write it. NULL keeps none.
  const char *kernel_cache;
} tlite_load_options;

// How tokens are chosen, and when an answer ends. Begin with what `tlite_generate_defaults` returns.
typedef struct {
  // Largest number of tokens to generate; 0 generates none.
  size_t max_tokens;
  // 0 takes the most likely token always; higher values take others more often.
  float temperature;
  // Choose among so many of the most likely tokens; 0 is off.
  size_t top_k;
  // Choose among the fewest tokens whose probabilities sum to this; 1 is off.
  float top_p;
  // Choose among the tokens at least this many times as likely as the most likely one; 0 is off.
  float min_p;
  // Divide logits of tokens that occurred lately by this; 1 is off.
  float repetition_penalty;
  // Start of the random sequence; equal seeds give equal texts.
  uint64_t seed;
  // `stop_count` texts in UTF-8 that end the answer and are not part of it; none may be empty. NULL where there are none.
  const char *const *stop;
  // How many texts `stop` has.
  size_t stop_count;
} tlite_generate_options;

// Takes a piece of text: `length` bytes of UTF-8 in whole characters, and a 0 behind them; a text may hold zero bytes, too. `text` is valid
// during the call only. Returns 0 to go on and anything else to end the answer. It must return normally: no `longjmp`, no exception. It may
// not generate with, clear or free the session.
typedef int (*tlite_callback)(const char *text, size_t length, void *user);

// A message of a conversation.
typedef struct {
  // "system", "user" or "assistant".
  const char *role;
  // What was said, in UTF-8.
  const char *content;
} tlite_message;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, as in "0.1.0". It is valid for ever.
const char *tlite_version(void);

// What went wrong in the last call of this thread that failed, in UTF-8; empty before any did. It is valid until the next call of this
// thread that fails.
const char *tlite_last_error(void);

// Loads the model in the folder `path`: `model.onnx`, `tokenizer.json` and the configuration files that exporters write beside them.
// `options` may be NULL. Returns a model to be freed by `tlite_model_free`, or NULL.
//
// # Safety
//
// Each pointer is NULL or points to what the header says.
tlite_model *tlite_model_load(const char *path,
                              const tlite_load_options *options);

// Frees a model. Its sessions keep what they need of it. NULL is allowed.
//
// # Safety
//
// `model` is NULL or from `tlite_model_load`, not freed before, and in use by no other call.
void tlite_model_free(tlite_model *model);

// A session of `model` with an empty cache, to be freed by `tlite_session_free`; or NULL. Sessions share weights and compiled kernels; each
// takes memory for its cache.
//
// # Safety
//
// `model` is NULL or from `tlite_model_load` and not freed.
tlite_session *tlite_session_new(const tlite_model *model);

// Frees a session. NULL is allowed.
//
// # Safety
//
// `session` is NULL or from `tlite_session_new`, not freed before, and in use by no other call.
void tlite_session_free(tlite_session *session);

// Empties the cache of a session. Returns 0, or -1 where it is in use.
//
// # Safety
//
// `session` is NULL or from `tlite_session_new` and not freed.
int tlite_session_clear(const tlite_session *session);

// Ends the answer that the session generates at this moment, within one step; without one it does nothing. For any thread.
//
// # Safety
//
// `session` is NULL or from `tlite_session_new` and not freed.
void tlite_cancel(const tlite_session *session);

// 256 tokens, of which each is the most likely one.
tlite_generate_options tlite_generate_defaults(void);

// Goes on with the text `prompt`, in UTF-8, and hands what comes to `callback` with `user`. `options` may be NULL. What the prompt shares with
// the session's cache from its start on is not computed again.
//
// # Safety
//
// Each pointer is NULL or points to what the header says; `session` is not freed before the call ends.
tlite_finish tlite_generate(const tlite_session *session,
                            const char *prompt,
                            const tlite_generate_options *options,
                            tlite_callback callback,
                            void *user);

// As `tlite_generate`, with the answer to a conversation of `count` messages, in the form that the model's chat template gives it.
//
// # Safety
//
// Each pointer is NULL or points to what the header says; `session` is not freed before the call ends.
tlite_finish tlite_chat(const tlite_session *session,
                        const tlite_message *messages,
                        size_t count,
                        const tlite_generate_options *options,
                        tlite_callback callback,
                        void *user);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TLITE_H */

package org.transformerlite

import java.io.Closeable

/** An error of the library: its message, and the code `tlite_error` of tlite.h. */
class TliteException(val code: Int, message: String) : Exception(message)

/** Why an answer ended. */
enum class Finish { END_OF_TEXT, STOP_STRING, MAX_TOKENS, CONTEXT_FULL, CANCELLED, CALLBACK }

/** Severity of a log line. */
enum class LogLevel { ERROR, WARNING, INFO }

/** The log of the library. */
object TliteLog {
    /**
     * Sends every log line to [listener]: deviations from the options, rejections by drivers, memory
     * use. It may be called on any thread and on several at once, and must not call the library.
     * `null` stops this.
     */
    @Synchronized
    fun listen(listener: ((LogLevel, String) -> Unit)?) {
        val native = if (listener == null) null else object : Native.LogListener {
            override fun line(level: Int, text: ByteArray) = listener(LogLevel.values()[level - 1], text(text))
        }
        if (!Native.setLog(native)) throw lastError()
    }
}

/** A message. [role] is "system", "user", "assistant" or "tool". */
data class Message(val role: String, val content: String)

/**
 * Where and how to load a model; see `tlite_load_options` in tlite.h. [backend] is "auto", "opencl",
 * "wgpu", "cpu" or "reference". [context] is in tokens; 0 selects the model's own length, at most
 * 4096. [cache] is a folder of the app for compiled kernels; null disables the cache.
 */
data class LoadOptions(
    val backend: String = "auto",
    val device: String? = null,
    val context: Int = 0,
    val kv: String? = null,
    val padding: Int = 0,
    val priority: String? = null,
    val cache: String? = null,
    val act: String? = null,
    val images: String? = null,
    val recording: String? = null,
    val sliceMs: Int = -1,
    val limits: String? = null,
    val threads: Int = 0
) {
    internal fun texts() =
        arrayOf(backend, device, kv, priority, cache, act, images, recording, limits).map { it?.let(::bytes) }.toTypedArray()

    internal fun numbers(): LongArray {
        require(context >= 0 && padding >= 0 && threads >= 0) { "context, padding and threads must not be negative" }
        return longArrayOf(context.toLong(), padding.toLong(), sliceMs.toLong(), threads.toLong())
    }
}

/**
 * How tokens are chosen and when an answer ends; see `tlite_generate_options` in tlite.h. An answer
 * matches [grammar] or [jsonSchema] if one is given. [logProbs] is the number of likeliest tokens
 * that a token listener receives; null disables log-probabilities.
 */
data class GenerateOptions(
    val maxTokens: Int = 256,
    val temperature: Float = 0f,
    val topK: Int = 0,
    val topP: Float = 1f,
    val minP: Float = 0f,
    val typicalP: Float = 1f,
    val seed: Long = 0,
    val repetitionPenalty: Float = 1f,
    val frequencyPenalty: Float = 0f,
    val presencePenalty: Float = 0f,
    val penaltyLastN: Int = 64,
    val dryMultiplier: Float = 0f,
    val stop: List<String> = emptyList(),
    val contextShift: Boolean = false,
    val grammar: String? = null,
    val jsonSchema: String? = null,
    val logProbs: Int? = null,
    val templateValues: String? = null
) {
    internal fun texts() = arrayOf(templateValues, grammar, jsonSchema).map { it?.let(::bytes) }.toTypedArray()

    internal fun numbers(): LongArray {
        require(maxTokens >= 0 && topK >= 0 && penaltyLastN >= 0 && (logProbs ?: 0) >= 0) {
            "maxTokens, topK, penaltyLastN and logProbs must not be negative"
        }
        val shift = if (contextShift) 1L else 0L
        return longArrayOf(maxTokens.toLong(), topK.toLong(), seed, shift, logProbs?.toLong() ?: -1L, penaltyLastN.toLong())
    }

    internal fun floats() = floatArrayOf(
        temperature, topP, minP, repetitionPenalty, frequencyPenalty, presencePenalty, typicalP, dryMultiplier
    )

    internal fun stops() = stop.map(::bytes).toTypedArray()
}

/** A token and its natural log-probability. */
data class LogProb(val token: Int, val logProb: Float, val text: String)

/** Counts and times of an answer; see `tlite_metrics` in tlite.h. */
data class Metrics(
    val promptTokens: Int,
    val reusedTokens: Int,
    val tokens: Int,
    val decodeTokens: Int,
    val forgottenTokens: Int,
    val firstTokenSeconds: Double,
    val decodeSeconds: Double
) {
    internal companion object {
        fun of(all: DoubleArray?): Metrics {
            val m = all ?: throw lastError()
            return Metrics(m[0].toInt(), m[1].toInt(), m[2].toInt(), m[3].toInt(), m[4].toInt(), m[5], m[6])
        }
    }
}

internal fun textsOf(messages: List<Message>) =
    messages.flatMap { listOf(bytes(it.role), bytes(it.content)) }.toTypedArray()

internal fun answerListener(guard: Guard, token: ((LogProb, List<LogProb>) -> Boolean)?, piece: (String) -> Boolean) =
    object : Native.AnswerListener {
        override fun piece(text: ByteArray) = guard.call { piece(text(text)) }

        override fun token(ids: IntArray, logProbs: FloatArray, texts: Array<ByteArray>) = guard.call {
            val all = ids.indices.map { LogProb(ids[it], logProbs[it], text(texts[it])) }
            token == null || token(all.first(), all.drop(1))
        }
    }

internal fun finishOf(number: Int, guard: Guard): Finish {
    guard.rethrow()
    return Finish.values().getOrElse(number) { throw lastError() }
}

/**
 * Converts the GGUF file or checkpoint folder [source] to the model folder [output], which must be
 * empty or not exist yet. [progress] receives the bytes done and their total; `false` ends the
 * conversion.
 */
fun convert(source: String, output: String, progress: ((Long, Long) -> Boolean)? = null) {
    val guard = Guard()
    val done = Native.convert(bytes(source), bytes(output), progressListener(guard, progress))
    guard.rethrow()
    if (!done) throw lastError()
}

/**
 * A language model in a folder made by [convert] or `tlite convert`. Loading takes seconds; do not
 * call it on the main thread. [progress] receives the kernels that are ready, and their number;
 * `false` ends the loading.
 */
class Model(
    path: String,
    options: LoadOptions = LoadOptions(),
    progress: ((Long, Long) -> Boolean)? = null
) : Closeable {
    private val handle: Handle

    init {
        val guard = Guard()
        val listener = progressListener(guard, progress)
        val model = Native.modelLoad(bytes(path), options.texts(), options.numbers(), listener)
        guard.rethrow()
        handle = Handle(model, Native::modelFree)
    }

    /** A session with its own KV cache. Sessions share the weights and may outlive the model. */
    fun session() = Session(handle.use { Native.sessionNew(it) })

    override fun close() = handle.close()
}

/** See [Model.session]. One answer at a time. */
class Session internal constructor(address: Long) : Closeable {
    private val handle = Handle(address, Native::sessionFree)

    /**
     * Answers the conversation and passes the text to [piece] as it is generated, on the calling
     * thread. Returning `false` ends the answer. [token] receives each token with log-probabilities,
     * if [GenerateOptions.logProbs] is set. Messages that are already in this session's cache are not
     * computed again. Do not call it on the main thread.
     */
    fun chat(
        messages: List<Message>,
        options: GenerateOptions = GenerateOptions(),
        token: ((LogProb, List<LogProb>) -> Boolean)? = null,
        piece: (String) -> Boolean
    ) = generate(true, textsOf(messages), options, token, piece)

    /** Like [chat], but continues the text [prompt]. */
    fun complete(
        prompt: String,
        options: GenerateOptions = GenerateOptions(),
        token: ((LogProb, List<LogProb>) -> Boolean)? = null,
        piece: (String) -> Boolean
    ) = generate(false, arrayOf(bytes(prompt)), options, token, piece)

    private fun generate(
        chat: Boolean,
        texts: Array<ByteArray>,
        o: GenerateOptions,
        token: ((LogProb, List<LogProb>) -> Boolean)?,
        piece: (String) -> Boolean
    ): Finish {
        val guard = Guard()
        val listener = answerListener(guard, token, piece)
        val finish = handle.use {
            Native.generate(it, chat, texts, o.texts(), o.numbers(), o.floats(), o.stops(), listener)
        }
        return finishOf(finish, guard)
    }

    /** Counts and times of the last answer. */
    val metrics get() = Metrics.of(handle.use { Native.sessionMetrics(it) })

    /** Empties the KV cache. */
    fun clear() {
        if (!handle.use { Native.sessionClear(it) }) throw lastError()
    }

    /**
     * Stops the current answer within one token. If there is none, the next answer ends before it
     * starts. May be called on any thread; does nothing after [close].
     */
    fun cancel() = handle.cancel(Native::cancel)

    /**
     * Clears a [cancel] that arrived while no answer was being generated; call it before a question.
     * May be called on any thread.
     */
    fun clearCancel() = handle.use { Native.cancelClear(it) }

    /** Also stops the current answer. Must not be called from a callback of [chat]. */
    override fun close() = handle.close(Native::cancel)
}

/**
 * A language model that answers many requests at the same time, at most [sequences]; further ones
 * wait. Close its requests, too.
 */
class Batcher(path: String, options: LoadOptions = LoadOptions(), sequences: Int = 8) : Closeable {
    private val handle: Handle

    init {
        require(sequences > 0) { "sequences must be positive" }
        val batcher = Native.batcherLoad(bytes(path), options.texts(), options.numbers(), sequences.toLong())
        handle = Handle(batcher, Native::batcherFree)
    }

    /**
     * Queues a conversation and returns at once. The callbacks are those of [Session.chat]; they are
     * called on a thread of the library.
     */
    fun chat(
        messages: List<Message>,
        options: GenerateOptions = GenerateOptions(),
        token: ((LogProb, List<LogProb>) -> Boolean)? = null,
        piece: (String) -> Boolean
    ): Request {
        val guard = Guard()
        val listener = answerListener(guard, token, piece)
        val (texts, o) = Pair(textsOf(messages), options)
        return Request(
            handle.use { Native.submit(it, texts, o.texts(), o.numbers(), o.floats(), o.stops(), listener) },
            guard
        )
    }

    override fun close() = handle.close()
}

/** See [Batcher.chat]. */
class Request internal constructor(address: Long, private val guard: Guard) : Closeable {
    private val handle = Handle(address, Native::requestFree)

    /** Waits for the end, and throws what a callback threw. */
    fun await(): Finish {
        outside()
        return finishOf(handle.use { Native.requestWait(it) }, guard)
    }

    /** Counts and times, after waiting for the end. */
    val metrics: Metrics
        get() {
            outside()
            return Metrics.of(handle.use { Native.requestMetrics(it) })
        }

    /** Ends the request after the current step. May be called on any thread; does nothing after [close]. */
    fun cancel() = handle.cancel(Native::requestCancel)

    /** Also cancels the request and waits for its callbacks. */
    override fun close() {
        outside()
        handle.close(Native::requestCancel)
    }

    private fun outside() = check(guard.thread !== Thread.currentThread()) { "a callback cannot wait for its own request" }
}

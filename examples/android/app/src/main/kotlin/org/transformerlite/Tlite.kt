package org.transformerlite

import android.system.Os
import java.util.concurrent.locks.ReentrantReadWriteLock
import kotlin.concurrent.read
import kotlin.concurrent.write

/** An error of the library, with its message. */
class TliteException(message: String) : Exception(message)

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
        val native = listener?.let {
            object : Native.LogListener {
                override fun line(level: Int, text: ByteArray) =
                    it(LogLevel.values()[level - 1], String(text, Charsets.UTF_8))
            }
        }
        if (!Native.setLog(native)) throw lastError()
    }
}

/** A message. [role] is "system", "user", "assistant" or "tool". */
data class Message(val role: String, val content: String)

/**
 * A model in a folder made by `tlite convert` and `tlite quantize`. Loading takes seconds; do not call
 * it on the main thread.
 *
 * [backend] is "auto", "opencl" or "wgpu". [context] is the context length in tokens; 0 selects the
 * model's own length, at most 4096. [cache] is a folder of the app for compiled kernels; null disables
 * the cache.
 */
class Model(path: String, backend: String = "auto", context: Int = 0, cache: String? = null) : AutoCloseable {
    private val handle =
        Handle(Native.modelLoad(bytes(path), bytes(backend), context.toLong(), cache?.let(::bytes)), Native::modelFree)

    /** A session with its own KV cache. Sessions share the weights and may outlive the model. */
    fun session() = Session(handle.use { Native.sessionNew(it) })

    override fun close() = handle.close()
}

/** See [Model.session]. One answer at a time. */
class Session internal constructor(address: Long) : AutoCloseable {
    private val handle = Handle(address, Native::sessionFree)

    /**
     * Answers the conversation and passes the text to [piece] as it is generated, on the calling
     * thread. Returning `false` ends the answer. Messages that are already in this session's cache are
     * not computed again. With [contextShift], a full context drops the oldest turns. Do not call it on
     * the main thread.
     */
    fun chat(
        messages: List<Message>,
        maxTokens: Int = 256,
        temperature: Float = 0f,
        contextShift: Boolean = false,
        piece: (String) -> Boolean
    ): Finish {
        val texts = messages.flatMap { listOf(bytes(it.role), bytes(it.content)) }.toTypedArray()
        val listener = object : Native.Listener {
            override fun piece(text: ByteArray) = piece(String(text, Charsets.UTF_8))
        }
        val finish = handle.use { Native.chat(it, texts, maxTokens.toLong(), temperature, contextShift, listener) }
        return Finish.values().getOrElse(finish) { throw lastError() }
    }

    /**
     * Stops the current answer within one token. If there is none, the next answer ends before it
     * starts. May be called on any thread.
     */
    fun cancel() = handle.use { Native.cancel(it) }

    /**
     * Clears a [cancel] that arrived while no answer was being generated; call it before a question.
     * May be called on any thread.
     */
    fun clearCancel() = handle.use { Native.cancelClear(it) }

    /** Also stops the current answer. Must not be called from the `piece` callback of [chat]. */
    override fun close() = handle.close(Native::cancel)
}

/** An object of the library. It is freed once, and not while a call uses it. */
private class Handle(private var address: Long, private val free: (Long) -> Unit) {
    private val lock = ReentrantReadWriteLock()

    init {
        if (address == 0L) throw lastError()
    }

    inline fun <T> use(call: (Long) -> T): T = lock.read {
        check(address != 0L) { "used after close" }
        call(address)
    }

    /** Frees the object after all calls have ended. [before] may make them end sooner. */
    fun close(before: (Long) -> Unit = {}) {
        lock.read { if (address != 0L) before(address) }
        lock.write {
            if (address != 0L) free(address)
            address = 0
        }
    }
}

private fun bytes(text: String): ByteArray {
    require('\u0000' !in text) { "text must not contain zero characters" }
    return text.toByteArray(Charsets.UTF_8)
}

private fun lastError() = TliteException(String(Native.lastError(), Charsets.UTF_8))

/** The functions of tlite_jni.c. */
internal object Native {
    init {
        // Read when OpenCL is first used. In a process with threads, Os.setenv is the safe way to set
        // it. The names are those in the manifest; the first one that can be opened is used.
        Os.setenv("OPENCL_DYLIB_PATH", "libOpenCL.so;libGLES_mali.so;libmali.so;libPVROCL.so", false)
        System.loadLibrary("tlite_jni")
    }

    interface Listener {
        fun piece(text: ByteArray): Boolean
    }

    interface LogListener {
        fun line(level: Int, text: ByteArray)
    }

    @JvmStatic external fun setLog(listener: LogListener?): Boolean
    @JvmStatic external fun lastError(): ByteArray
    @JvmStatic external fun modelLoad(path: ByteArray, backend: ByteArray, context: Long, cache: ByteArray?): Long
    @JvmStatic external fun modelFree(model: Long)
    @JvmStatic external fun sessionNew(model: Long): Long
    @JvmStatic external fun sessionFree(session: Long)
    @JvmStatic external fun cancel(session: Long)
    @JvmStatic external fun cancelClear(session: Long)
    @JvmStatic external fun chat(
        session: Long,
        texts: Array<ByteArray>,
        maxTokens: Long,
        temperature: Float,
        contextShift: Boolean,
        listener: Listener
    ): Int
}

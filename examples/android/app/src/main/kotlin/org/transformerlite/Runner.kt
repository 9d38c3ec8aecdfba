package org.transformerlite

import java.io.Closeable
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** Element types, in the order of `tlite_type` in tlite.h; [bytes] is the size of an element. */
enum class Type(val bytes: Int) {
    F32(4), F16(2), I64(8), I32(4), U32(4), U8(1), I8(1), BOOL(1), F64(8), BF16(2), I16(2), U16(2), U64(8), I4(1), U4(1),
    I2(1), U2(1), F8E4M3(1), F8E4M3UZ(1), F8E5M2(1), F8E5M2UZ(1), F8E8M0(1), F4E2M1(1)
}

/**
 * An input or output. [axes] has a text for each axis: a size, or a name or formula such as "batch";
 * null if the model does not state the number of axes.
 */
data class TensorInfo(val name: String, val type: Type, val axes: List<String>?, val optional: Boolean)

/** A tensor: [data] is a direct buffer in native byte order, with elements in row-major order. */
class Tensor(val name: String, val type: Type, val shape: List<Int>, val data: ByteBuffer) {
    init {
        require(data.isDirect) { "$name: a direct buffer is needed" }
        require(shape.all { it >= 0 }) { "$name: a size is negative: $shape" }
    }

    /** The elements of a tensor of type F32. */
    fun floats(): FloatArray {
        check(type == Type.F32) { "$name has type $type, not F32" }
        return FloatArray(data.capacity() / 4).also { buffer().asFloatBuffer().get(it) }
    }

    /** The elements of a tensor of type I64. */
    fun longs(): LongArray {
        check(type == Type.I64) { "$name has type $type, not I64" }
        return LongArray(data.capacity() / 8).also { buffer().asLongBuffer().get(it) }
    }

    private fun buffer(): ByteBuffer {
        val copy = data.duplicate().order(ByteOrder.nativeOrder())
        copy.clear()
        return copy
    }

    companion object {
        /** A tensor of type F32. */
        fun of(name: String, shape: List<Int>, values: FloatArray): Tensor {
            val data = buffer(4L * values.size)
            data.asFloatBuffer().put(values)
            return Tensor(name, Type.F32, shape, data)
        }

        /** A tensor of type I64. */
        fun of(name: String, shape: List<Int>, values: LongArray): Tensor {
            val data = buffer(8L * values.size)
            data.asLongBuffer().put(values)
            return Tensor(name, Type.I64, shape, data)
        }

        internal fun buffer(bytes: Long): ByteBuffer {
            require(bytes <= Int.MAX_VALUE) { "a buffer of $bytes bytes is too large" }
            return ByteBuffer.allocateDirect(bytes.toInt()).order(ByteOrder.nativeOrder())
        }
    }
}

/**
 * A model of any kind: an ONNX file, or a folder with `model.onnx`. One run at a time. Do not load or
 * run it on the main thread.
 */
class Runner(path: String, options: LoadOptions = LoadOptions()) : Closeable {
    private val handle = Handle(Native.runnerLoad(bytes(path), options.texts(), options.numbers()), Native::runnerFree)

    /** The inputs; the sizes of axes with names are chosen by each run. */
    val inputs: List<TensorInfo> get() = handle.use { infos(it, false) }

    /** The outputs of the last run; before it, those whose shapes the model states. */
    val outputs: List<TensorInfo> get() = handle.use { infos(it, true) }

    /** Runs the model with one tensor for each input that is not optional, in any order. */
    fun run(vararg inputs: Tensor): List<Tensor> = handle.use { runner ->
        val done = Native.runnerRun(
            runner,
            inputs.map { bytes(it.name) }.toTypedArray(),
            inputs.map { it.type.ordinal }.toIntArray(),
            inputs.map { t -> t.shape.map { it.toLong() }.toLongArray() }.toTypedArray(),
            inputs.map { it.data }.toTypedArray(),
            inputs.map { it.data.capacity().toLong() }.toLongArray()
        )
        if (!done) throw lastError()
        infos(runner, true).map { read(runner, it) }
    }

    /**
     * Stops the current run, or the next one if there is none. May be called on any thread; does
     * nothing after [close].
     */
    fun cancel() = handle.cancel(Native::runnerCancel)

    override fun close() = handle.close(Native::runnerCancel)

    private fun infos(runner: Long, output: Boolean) = (0 until Native.runnerCount(runner, output)).map { index ->
        val numbers = LongArray(3)
        val texts = Native.runnerInfo(runner, output, index, numbers)?.map(::text) ?: throw lastError()
        val axes = if (numbers[2] < 0) null else texts.drop(1)
        TensorInfo(texts.first(), Type.values()[numbers[0].toInt()], axes, numbers[1] != 0L)
    }

    private fun read(runner: Long, info: TensorInfo): Tensor {
        val shape = info.axes.orEmpty().map { it.toInt() }
        val data = Tensor.buffer(shape.fold(info.type.bytes.toLong()) { all, size -> all * size })
        val read = Native.runnerRead(runner, bytes(info.name), info.type.ordinal, data, data.capacity().toLong())
        if (!read) throw lastError()
        return Tensor(info.name, info.type, shape, data)
    }
}

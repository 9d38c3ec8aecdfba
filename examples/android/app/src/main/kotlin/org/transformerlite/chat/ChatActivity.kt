package org.transformerlite.chat

import android.app.Activity
import android.os.Bundle
import android.util.Log
import android.view.ViewGroup.LayoutParams.MATCH_PARENT
import android.view.ViewGroup.LayoutParams.WRAP_CONTENT
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.TextView
import java.io.File
import java.util.concurrent.Executors
import org.transformerlite.Finish
import org.transformerlite.GenerateOptions
import org.transformerlite.LoadOptions
import org.transformerlite.LogLevel
import org.transformerlite.Message
import org.transformerlite.Model
import org.transformerlite.Session
import org.transformerlite.TliteException
import org.transformerlite.TliteLog
import org.transformerlite.prepareAndroid

/** A chat with the model in the folder `model` of the app's files. */
class ChatActivity : Activity() {
    private val worker = Executors.newSingleThreadExecutor()
    private val messages = mutableListOf<Message>()
    private lateinit var log: TextView
    private lateinit var scroll: ScrollView
    private lateinit var input: EditText
    private lateinit var button: Button

    /** Created by the worker; the main thread reads it to cancel. */
    @Volatile private var session: Session? = null
    private var answering = false

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        log = TextView(this).apply { setTextIsSelectable(true) }
        scroll = ScrollView(this).apply { addView(log) }
        input = EditText(this).apply { setHint(R.string.message) }
        button = Button(this).apply {
            setText(R.string.send)
            isEnabled = false
            setOnClickListener { if (answering) session?.cancel() else send() }
        }
        val line = LinearLayout(this).apply {
            addView(input, LinearLayout.LayoutParams(0, WRAP_CONTENT, 1f))
            addView(button)
        }
        setContentView(
            LinearLayout(this).apply {
                orientation = LinearLayout.VERTICAL
                fitsSystemWindows = true
                addView(scroll, LinearLayout.LayoutParams(MATCH_PARENT, 0, 1f))
                addView(line)
            }
        )
        prepareAndroid()
        TliteLog.listen { level, text ->
            val priority = when (level) {
                LogLevel.ERROR -> Log.ERROR
                LogLevel.WARNING -> Log.WARN
                LogLevel.INFO -> Log.INFO
            }
            Log.println(priority, "tlite", text)
        }
        load(File(filesDir, "model"))
    }

    private fun load(folder: File) {
        if (!File(folder, "model.onnx").exists()) {
            say(getString(R.string.no_model, folder))
            return
        }
        say(getString(R.string.loading))
        work {
            val options = LoadOptions(cache = File(cacheDir, "kernels").path)
            session = Model(folder.path, options).use { it.session() }
            runOnUiThread {
                say(getString(R.string.ready))
                button.isEnabled = true
            }
        }
    }

    private fun send() {
        val text = input.text.toString().trim()
        if (text.isEmpty()) return
        input.text.clear()
        messages += Message("user", text)
        say("\n> $text\n")
        answers(true)
        // A button press after the last answer ended does not apply to this one.
        session?.clearCancel()
        val asked = messages.toList()
        work {
            val answer = StringBuilder()
            try {
                val finish = session?.chat(asked, GenerateOptions(contextShift = true)) { piece ->
                    answer.append(piece)
                    runOnUiThread { put(piece) }
                    true
                }
                if (finish == Finish.CONTEXT_FULL) runOnUiThread { say("[$finish]") }
            } finally {
                runOnUiThread {
                    // A question without any answer is not part of the conversation.
                    if (answer.isEmpty()) messages.removeAt(messages.lastIndex) else messages += Message("assistant", answer.toString())
                    put("\n")
                    answers(false)
                }
            }
        }
    }

    /** Runs on the worker; errors are shown. */
    private fun work(task: () -> Unit) = worker.execute {
        try {
            task()
        } catch (e: TliteException) {
            runOnUiThread { say(e.message.orEmpty()) }
        }
    }

    private fun answers(now: Boolean) {
        answering = now
        button.setText(if (now) R.string.stop else R.string.send)
    }

    private fun say(text: String) = put(text + "\n")

    private fun put(text: String) {
        log.append(text)
        scroll.post { scroll.fullScroll(ScrollView.FOCUS_DOWN) }
    }

    override fun onDestroy() {
        session?.cancel()
        worker.execute {
            session?.close()
            session = null
        }
        worker.shutdown()
        super.onDestroy()
    }
}

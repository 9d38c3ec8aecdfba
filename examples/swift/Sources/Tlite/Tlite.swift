import CTlite

/// An error of the library, with its code and message.
public struct TliteError: Error {
    public let code: tlite_error
    public let message: String

    static var last: TliteError {
        TliteError(code: tlite_last_error_code(), message: String(cString: tlite_last_error()))
    }
}

/// A language model in a folder made by `tlite convert`, with one session.
public final class Chat {
    private let session: OpaquePointer

    public init(folder: String) throws {
        guard let model = tlite_model_load(folder, nil) else { throw TliteError.last }
        defer { tlite_model_free(model) }
        guard let session = tlite_session_new(model) else { throw TliteError.last }
        self.session = session
    }

    deinit { tlite_session_free(session) }

    /// Continues `prompt`. `receive` gets each piece of text; `false` ends the answer.
    public func generate(_ prompt: String, receive: @escaping (String) -> Bool) throws {
        let box = Unmanaged.passRetained(Receiver(receive))
        defer { box.release() }
        let finish = tlite_generate(
            session, prompt, nil,
            { text, _, user in
                let receiver = Unmanaged<Receiver>.fromOpaque(user!).takeUnretainedValue()
                return receiver.receive(String(cString: text!)) ? 0 : 1
            }, box.toOpaque())
        if finish == TLITE_FINISH_ERROR { throw TliteError.last }
    }
}

private final class Receiver {
    let receive: (String) -> Bool
    init(_ receive: @escaping (String) -> Bool) { self.receive = receive }
}

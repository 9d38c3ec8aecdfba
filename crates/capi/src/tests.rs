use crate::error::*;
use crate::generate::*;
use crate::model::*;
use crate::options::{Options, options_of, write_defaults};
use crate::quarantine::*;
use crate::session::TliteSession;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tlite_testing::assert_carries;
use transformer_lite::{Cancel, Conversation, Error, ErrorKind, Result, Session, Stage};

fn last_error() -> String {
    // SAFETY: the pointer is that of this thread's message, which no call changes meanwhile.
    let message = unsafe { CStr::from_ptr(tlite_last_error()) };
    message.to_str().unwrap().to_owned()
}

#[test]
fn panics_and_errors_become_messages() {
    assert_eq!(
        (last_error(), tlite_last_error_code()),
        (String::new(), TliteError::None)
    );
    assert_eq!(guarded(-1, || -> Result<i32> { panic!("what {}", 7) }), -1);
    let panicked = last_error();
    assert_carries(&panicked, &["7"]);
    assert_eq!(tlite_last_error_code(), TliteError::Internal);
    assert_eq!(guarded(1, || Ok(2)), 2);
    assert_eq!(last_error(), panicked, "what works changes nothing");
    assert!(guarded(true, || Err(Error::usage("x", "with a \0 inside"))));
    assert_eq!(last_error(), "x: with a ");
    assert_eq!(tlite_last_error_code(), TliteError::Usage);
    let long = || Err(Error::usage("prompt", "is long").of_kind(ErrorKind::ContextExceeded));
    assert!(guarded(true, long));
    assert_eq!(tlite_last_error_code(), TliteError::ContextExceeded);
    assert!(guarded(true, || Err(Error::internal(Stage::Run, "no step"))));
    assert_eq!(tlite_last_error_code(), TliteError::Internal);
    let other = std::thread::spawn(last_error).join().unwrap();
    assert_eq!(other, "", "each thread has its own");
}

#[test]
fn a_failing_call_at_the_end_of_a_thread_is_harmless() {
    static TOO_LATE: AtomicUsize = AtomicUsize::new(0);
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            guarded((), || Err(Error::usage("x", "fails")));
            if LAST_ERROR.try_with(|_| ()).is_err() {
                TOO_LATE.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    thread_local! {
        static FIRST: Guard = const { Guard };
        static LAST: Guard = const { Guard };
    }
    // One of them is destroyed after the message, whatever the order.
    let thread = std::thread::spawn(|| {
        FIRST.with(|_| ());
        guarded((), || Err(Error::usage("x", "fails")));
        LAST.with(|_| ());
    });
    thread.join().unwrap();
    assert_eq!(TOO_LATE.load(Ordering::Relaxed), 1);
}

/// A struct in its second version.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Grown {
    size: usize,
    old: usize,
    new: usize,
}

// SAFETY: as the trait demands.
unsafe impl Options for Grown {
    const FIRST: usize = offset_of!(Self, new);

    fn defaults() -> Self {
        Self {
            size: size_of::<Self>(),
            old: 1,
            new: 2,
        }
    }
}

#[test]
fn options_of_an_earlier_header_are_a_prefix() {
    let read = |bytes: &[usize]| {
        // SAFETY: no more than the size is read, which the bytes have or which is refused.
        unsafe { options_of(bytes.as_ptr().cast::<Grown>()) }
    };
    let (first, whole) = (size_of::<[usize; 2]>(), size_of::<Grown>());
    let found = read(&[first, 7]).unwrap().unwrap();
    assert_eq!((found.old, found.new), (7, 2));
    let found = read(&[whole, 7, 8]).unwrap().unwrap();
    assert_eq!((found.old, found.new), (7, 8));
    for size in [0, first - 1, whole + 1, usize::MAX] {
        let e = read(&[size, 7, 8]).unwrap_err();
        assert!(matches!(&e, Error::Usage { name, .. } if name == "size"), "{e}");
        assert_carries(e, &[&size.to_string()]);
    }
    // SAFETY: NULL is allowed.
    assert_eq!(unsafe { options_of::<Grown>(std::ptr::null()) }.unwrap(), None);

    let mut own = [9; 3];
    // SAFETY: as many bytes are written as are said to be there.
    let wrote = unsafe { write_defaults::<Grown>(own.as_mut_ptr().cast(), first) };
    assert_eq!((wrote, own), (0, [first, 1, 9]));
    // SAFETY: as before; a size that is unknown writes nothing.
    let wrote = unsafe { write_defaults::<Grown>(own.as_mut_ptr().cast(), whole + 1) };
    assert_eq!((wrote, own), (-1, [first, 1, 9]));
    // A later member must not take the place of padding.
    let last = offset_of!(TliteLoadOptions, progress_user) + size_of::<usize>();
    assert_eq!(last, size_of::<TliteLoadOptions>());
    let last = offset_of!(TliteGenerateOptions, json_unbounded) + size_of::<usize>();
    assert_eq!(last, size_of::<TliteGenerateOptions>());
    let first = offset_of!(TliteGenerateOptions, grammar);
    assert_eq!(TliteGenerateOptions::FIRST, first);
}

#[test]
fn quarantined_kernels_are_listed_and_cleared() {
    use transformer_lite::unstable::backend::{Caps, validation};
    use transformer_lite::{QuarantineCause, Quarantined};
    unsafe extern "C" fn keep(text: *const c_char, length: usize, user: *mut c_void) -> c_int {
        // SAFETY: the library passes a text that ends with a 0, and the pointer below.
        let (text, kept) = unsafe { (CStr::from_ptr(text), &mut *user.cast::<String>()) };
        kept.push_str(text.to_str().unwrap());
        assert_eq!(length, kept.len());
        1
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let path = CString::new(folder).unwrap();
    let list = || {
        let mut json = String::new();
        // SAFETY: all pointers are live during the call.
        let count = unsafe { tlite_quarantine_list(path.as_ptr(), Some(keep), (&raw mut json).cast()) };
        (count, serde_json::from_str::<serde_json::Value>(&json).unwrap())
    };
    assert_eq!(list(), (0, serde_json::json!([])));
    let kernel = transformer_lite::unstable::probe::KERNELS[0];
    let found = Quarantined::new(kernel, "probe_copy", QuarantineCause::LaunchRefused, "fails");
    validation::store_quarantined(&kernel_cache_in(folder), &Caps::generic_gpu(), &[found]);
    let (count, json) = list();
    assert_eq!(count, 1);
    let kernels = &json[0]["kernels"];
    assert_eq!(
        (&json[0]["backend"], &kernels[0]["cause"]),
        (&"opencl".into(), &"launch-refused".into())
    );
    // SAFETY: as above, and NULL is allowed.
    unsafe {
        assert_eq!(tlite_quarantine_clear(path.as_ptr()), 1);
        assert_eq!(tlite_quarantine_clear(path.as_ptr()), 0);
        assert_eq!(tlite_quarantine_clear(std::ptr::null()), -1);
        assert_eq!(
            tlite_quarantine_list(path.as_ptr(), None, std::ptr::null_mut()),
            -1
        );
    }
    assert_eq!(tlite_last_error_code(), TliteError::Usage);
    assert_eq!(list().0, 0);
}

#[test]
fn a_session_in_pieces_is_refused() {
    use tlite_testing::llm::testing::{FakeModel, byte_codec};
    let (_dir, codec) = byte_codec("{}");
    let model = Box::new(FakeModel::new(258, 9, |_| panic!("in the model")));
    let session = Session::new(model, Arc::new(codec));
    let handle = TliteSession {
        conversation: Mutex::new(Conversation::new(session, Vec::new())),
        cancel: Cancel::default(),
        metrics: Mutex::default(),
    };
    unsafe extern "C" fn ignore(_: *const c_char, _: usize, _: *mut c_void) -> c_int {
        0
    }
    for code in [TliteError::Internal, TliteError::Other] {
        let user = std::ptr::null_mut();
        // SAFETY: all pointers are live or NULL.
        let finish = unsafe { tlite_generate(&handle, c"x".as_ptr(), std::ptr::null(), Some(ignore), user) };
        assert_eq!(finish, TliteFinish::Error);
        assert_eq!(tlite_last_error_code(), code, "{}", last_error());
    }
}

#[test]
fn types_of_tensors_have_the_numbers_of_the_header() {
    use crate::runner::{TYPES, dtype};
    for (number, (found, of_c)) in (0..).zip(TYPES) {
        assert_eq!((of_c as c_int, dtype("x", number).unwrap()), (number, found));
    }
    for number in [-1, 23] {
        let e = dtype("x", number).unwrap_err();
        assert!(matches!(&e, Error::Usage { name, .. } if name == "x"), "{e}");
    }
}

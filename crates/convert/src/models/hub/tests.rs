use super::*;

#[test]
fn specs_name_a_repository_and_perhaps_a_file() {
    for (text, repo, file) in [
        ("a/b", "a/b", None),
        ("hf:a/b", "a/b", None),
        ("hf:A-1/b_2.c:x.gguf", "A-1/b_2.c", Some("x.gguf")),
        ("a/b:dir/x.gguf", "a/b", Some("dir/x.gguf")),
        ("hf.co/a/b", "a/b", None),
        ("https://huggingface.co/a/b/", "a/b", None),
        ("huggingface.co/a/b:x.gguf", "a/b", Some("x.gguf")),
    ] {
        let spec: Spec = text.parse().unwrap();
        assert_eq!((spec.repo(), spec.file()), (repo, file));
        assert_eq!(spec.to_string().parse::<Spec>().unwrap(), spec);
    }
    let spec: Spec = "a/b:Q4_K_M".parse().unwrap();
    assert_eq!(
        (spec.file(), spec.quant.as_deref(), spec.to_string().as_str()),
        (None, Some("Q4_K_M"), "hf:a/b:Q4_K_M")
    );
    let spec: Spec = "a/b:UD-Q4_K_XL".parse().unwrap();
    assert_eq!((spec.file(), spec.quant.as_deref()), (None, Some("UD-Q4_K_XL")));
    for text in [
        "",
        "a",
        "a/",
        "/b",
        "a/b/c",
        "a/..",
        "../b",
        "a/b:",
        "a/b:/x",
        "a/b:x/../y",
        "a/b:x\n",
        "a b/c",
        "hf:hf:a/b",
        "a/b:c:d",
        "a/b:..\\x",
    ] {
        let e = text.parse::<Spec>().unwrap_err();
        assert!(e.is_usage(), "{text:?}");
        assert!(!e.to_string().contains('\n'), "{e}");
    }
}

#[test]
fn many_files_fit_a_line() {
    let files: Vec<String> = (0..20).map(|n| format!("{n}.gguf")).collect();
    let text = listed("its GGUF files are", &files);
    assert!(text.ends_with("11.gguf and 8 more"), "{text}");
}

use super::*;

#[test]
fn metadata_come_from_all_answers() {
    let headers = |list: &[(&'static str, &'static str)]| {
        let mut map = HeaderMap::new();
        for (name, value) in list {
            map.insert(*name, value.parse().unwrap());
        }
        map
    };
    let mut meta = Meta::default();
    meta.add(&headers(&[("etag", "\"first\""), ("content-length", "3")]), false);
    assert_eq!(meta, Meta::default());
    let linked = [
        ("x-linked-etag", "\"abc\""),
        ("x-linked-size", "7"),
        ("x-repo-commit", "c"),
    ];
    meta.add(&headers(&linked), false);
    meta.add(&headers(&[("etag", "W/\"last\""), ("content-length", "9")]), true);
    let of = |etag: &str, size| (Some(etag.to_owned()), Some(size));
    assert_eq!((meta.etag, meta.size), of("abc", 7));
    let mut meta = Meta::default();
    meta.add(&headers(&[("etag", "W/\"last\""), ("content-length", "9")]), true);
    assert_eq!((meta.etag, meta.size), of("last", 9));
    let range = [("content-range", "bytes 12-19/20"), ("retry-after", " 3 ")];
    assert_eq!(first_byte(&headers(&range)), Some(12));
    assert_eq!(retry_after(&headers(&range)), Some(Duration::from_secs(3)));
}

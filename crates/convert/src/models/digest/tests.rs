use super::*;

#[test]
fn digests_are_those_of_the_standard() {
    let mut hash = Hash::default();
    hash.update(b"a");
    hash.update(b"bc");
    let digest = hash.finish();
    assert!(is_sha256(&digest));
    assert_eq!(
        digest,
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
    assert!(!is_sha256("BA78") && !is_sha256(&digest.to_uppercase()));
}

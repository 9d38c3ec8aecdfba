use super::*;

#[test]
fn fields_of_each_wire_type() {
    let mut message = vec![0x08, 0xac, 0x02, 0x11, 1, 2, 3, 4, 5, 6, 7, 8];
    put(&mut message, 300, &[7; 200]);
    message.extend([0x1d, 1, 2, 3, 4]);
    let split = fields(&message).unwrap();
    assert_eq!(split.iter().map(|f| f.tag).collect::<Vec<_>>(), [1, 2, 300, 3]);
    assert_eq!(split[0].whole, [0x08, 0xac, 0x02]);
    assert_eq!(split[2].content, [7; 200]);
    assert_eq!(
        split.iter().flat_map(|f| f.whole).copied().collect::<Vec<_>>(),
        message
    );
    for cut in 1..message.len() {
        let whole =
            fields(&message[..cut]).is_some_and(|f| f.iter().map(|f| f.whole.len()).sum::<usize>() == cut);
        assert_eq!(whole, [3, 12, 216].contains(&cut), "{cut}");
    }
    assert_eq!(fields(&[0x0b, 0x0c]), None);
    assert_eq!(fields(&[0xff; 11]), None);
}

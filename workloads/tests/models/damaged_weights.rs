//! A weight file that is cut short or damaged gives an error, never a panic.

use lazybatch_workloads::zoo::phonemes;

const WHOLE: &[u8] = include_bytes!("../../models/phonemes/model.safetensors");

#[test]
fn truncated_files_are_refused() {
    assert!(phonemes::program_from_bytes(WHOLE).is_ok());
    let header = 8 + u64::from_le_bytes(WHOLE[..8].try_into().unwrap()) as usize;
    let middle = (header + WHOLE.len()) / 2;
    for len in [
        0,
        1,
        7,
        8,
        9,
        header / 2,
        header - 1,
        header,
        header + 1,
        middle,
        WHOLE.len() - 1,
    ] {
        let Err(error) = phonemes::program_from_bytes(&WHOLE[..len]) else {
            panic!("{len} bytes were taken for the whole file")
        };
        let message = error.to_string();
        assert!(message.starts_with("weight file phonemes: "), "{message}");
        assert!(message.contains(&format!("{len} bytes")), "{message}");
    }
}

#[test]
fn damaged_headers_are_refused() {
    for (at, byte) in [(0, 0xff), (7, 0xff), (8, b'x'), (20, 0x00)] {
        let mut bytes = WHOLE.to_vec();
        bytes[at] = byte;
        assert!(phonemes::program_from_bytes(&bytes).is_err(), "byte {at}");
    }
    let longer = [WHOLE, &[0; 4]].concat();
    assert!(phonemes::program_from_bytes(&longer).is_err());
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = phonemes::program_from_file("no/such.safetensors").unwrap_err();
    assert!(error.to_string().contains("no/such.safetensors"), "{error}");
}

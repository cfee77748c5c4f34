//! Arrays of f32 from NumPy's `.npz`.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use npyz::NpyFile;
use npyz::npz::NpzArchive;

use crate::error::Error;
use crate::folder::MAX_MADE_BYTES;
use crate::tensor::Tensor;

/// All arrays, by name.
///
/// # Errors
/// [`Error::File`] for a file that is missing or malformed, holds an array that is not row-major
/// f32, or is compressed and would take more than 64 GiB.
pub(super) fn read(path: &Path) -> Result<Vec<(String, Tensor)>, Error> {
    let failed = |what: String| Error::File {
        path: path.display().to_string(),
        what,
    };
    let no_archive = |e| failed(format!("expected an archive of NumPy arrays, got {e}"));
    let file = File::open(path).map_err(no_archive)?;
    let mut archive = NpzArchive::new(BufReader::new(file)).map_err(no_archive)?;
    let mut names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    names.sort_unstable();
    // A small file may expand to any size, so what arrays say of themselves is looked at first.
    let mut bytes = 0_u64;
    for name in &names {
        let of_array = |what: String| failed(format!("array {name}: {what}"));
        let array = open(&mut archive, name).map_err(of_array)?;
        let num = array
            .shape()
            .iter()
            .try_fold(1_u64, |n, &d| n.checked_mul(d));
        let own = num.and_then(|n| n.checked_mul(size_of::<f32>() as u64));
        let with_it = own.and_then(|own| bytes.checked_add(own));
        bytes = match with_it.filter(|&n| n <= MAX_MADE_BYTES) {
            Some(with_it) => with_it,
            None => {
                let expected = format!("at most {MAX_MADE_BYTES} bytes of all arrays");
                let got = with_it.map_or("more than can be counted".to_owned(), |n| n.to_string());
                return Err(of_array(format!("expected {expected}, got {got} with it")));
            }
        };
    }
    let mut tensors = Vec::new();
    for name in names {
        let of_array = |what: String| failed(format!("array {name}: {what}"));
        let array = open(&mut archive, &name).map_err(of_array)?;
        let dims: Vec<usize> = array.shape().iter().map(|&n| n as usize).collect();
        if array.order() != npyz::Order::C && dims.len() > 1 {
            return Err(of_array("expected row-major, got column-major".to_owned()));
        }
        let data = array
            .into_vec::<f32>()
            .map_err(|e| of_array(e.to_string()))?;
        let num = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if num != Some(data.len()) {
            let got = data.len();
            return Err(of_array(format!("{dims:?}, but {got} elements")));
        }
        tensors.push((name, Tensor::from_f32(&dims, &data)));
    }
    Ok(tensors)
}

/// An array, of which only the header is read yet.
fn open<'a>(
    archive: &'a mut NpzArchive<BufReader<File>>,
    name: &str,
) -> Result<NpyFile<impl std::io::Read + use<'a>>, String> {
    let array = archive.by_name(name).map_err(|e| e.to_string())?;
    array.ok_or_else(|| "listed, but not there".to_owned())
}

#[cfg(test)]
mod tests {
    use npyz::WriterBuilder;
    use npyz::npz::NpzWriter;

    use super::*;

    /// A file with arrays that say to be so large; of each, `data` is there.
    fn file(arrays: &[(&str, &[u64])], data: &[f32]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = NpzWriter::new(file.reopen().unwrap());
        for (name, shape) in arrays {
            let array = writer.array(name, Default::default()).unwrap();
            let mut array = array.default_dtype().shape(shape).begin_nd().unwrap();
            array.extend(data).unwrap();
        }
        writer.zip_writer().finish().unwrap();
        file
    }

    #[test]
    fn arrays_are_bounded_before_they_are_expanded() {
        let small = file(&[("a", &[2, 1]), ("b", &[2])], &[1.0, 2.0]);
        let read_all = read(small.path()).unwrap();
        assert_eq!(read_all[0].1.dims, [2, 1]);
        assert_eq!(read_all[1].1.to_f32(), [1.0, 2.0]);
        let refused = |arrays: &[(&str, &[u64])]| {
            let file = file(arrays, &[1.0]);
            read(file.path()).unwrap_err().to_string()
        };
        let told = "expected at most 68719476736 bytes of all arrays, got";
        let e = refused(&[("a", &[1 << 20, 1 << 20])]);
        assert!(
            e.ends_with(&format!("array a: {told} 4398046511104 with it")),
            "{e}"
        );
        // Each fits, together they do not; the first is not looked into before.
        let e = refused(&[("a", &[10 << 30]), ("b", &[10 << 30])]);
        assert!(
            e.ends_with(&format!("array b: {told} 85899345920 with it")),
            "{e}"
        );
        let e = refused(&[("a", &[1 << 62, 1])]);
        assert!(
            e.ends_with(&format!("array a: {told} more than can be counted with it")),
            "{e}"
        );
    }
}

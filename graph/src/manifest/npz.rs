//! Arrays of f32 from NumPy's `.npz`.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use npyz::NpyFile;
use zip::ZipArchive;

use crate::error::Error;
use crate::folder::MAX_MADE_BYTES;
use crate::tensor::Tensor;

/// What the archive puts behind an array's name.
const SUFFIX: &str = ".npy";

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
    let no_archive =
        |e: &dyn Display| failed(format!("expected an archive of NumPy arrays, got {e}"));
    let file = File::open(path).map_err(|e| no_archive(&e))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|e| no_archive(&e))?;
    let mut names = Vec::new();
    for name in archive.file_names() {
        let name = name.map_err(|e| no_archive(&e))?;
        names.extend(name.strip_suffix(SUFFIX).map(str::to_owned));
    }
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
    archive: &'a mut ZipArchive<BufReader<File>>,
    name: &str,
) -> Result<NpyFile<impl Read + use<'a>>, String> {
    let file = archive.by_name(&format!("{name}{SUFFIX}"));
    let file = file.map_err(|e| e.to_string())?;
    NpyFile::new(file).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use npyz::{WriteOptions, WriterBuilder};
    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::*;

    /// A file with arrays that say to be so large; of each, `data` is there.
    fn file(arrays: &[(&str, &[u64])], data: &[f32]) -> tempfile::NamedTempFile {
        by(CompressionMethod::Stored, arrays, data)
    }

    fn by(
        method: CompressionMethod,
        arrays: &[(&str, &[u64])],
        data: &[f32],
    ) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = ZipWriter::new(file.reopen().unwrap());
        let options = SimpleFileOptions::default().compression_method(method);
        for (name, shape) in arrays {
            writer.start_file(format!("{name}.npy"), options).unwrap();
            let array = WriteOptions::<f32>::new().default_dtype().shape(shape);
            let mut array = array.writer(&mut writer).begin_nd().unwrap();
            array.extend(data.iter().copied()).unwrap();
        }
        writer.finish().unwrap();
        file
    }

    #[test]
    fn compressed_arrays_are_read_and_what_is_no_array_is_not() {
        let data: Vec<f32> = (0..1000).map(|i| (i % 7) as f32).collect();
        let small = by(CompressionMethod::Deflated, &[("a", &[10, 100])], &data);
        assert!(small.path().metadata().unwrap().len() < 1000);
        let mut writer = ZipWriter::new_append(small.reopen().unwrap()).unwrap();
        writer
            .start_file("note.txt", SimpleFileOptions::default())
            .unwrap();
        writer.finish().unwrap();
        let read_all = read(small.path()).unwrap();
        assert_eq!(read_all.len(), 1);
        assert_eq!(read_all[0].0, "a");
        assert_eq!(read_all[0].1.to_f32(), data);
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

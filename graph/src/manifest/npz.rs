//! Arrays of f32 from NumPy's `.npz`.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use npyz::npz::NpzArchive;

use crate::error::Error;
use crate::tensor::Tensor;

/// All arrays, by name.
///
/// # Errors
/// [`Error::File`] for a file that is missing or malformed, or holds an array that is not row-major
/// f32.
pub(super) fn read(path: &Path) -> Result<Vec<(String, Tensor)>, Error> {
    let failed = |what: String| Error::File {
        path: path.display().to_string(),
        what,
    };
    let file = File::open(path).map_err(|e| failed(e.to_string()))?;
    let mut archive = NpzArchive::new(BufReader::new(file)).map_err(|e| failed(e.to_string()))?;
    let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    let mut tensors = Vec::new();
    for name in names {
        let of_array = |what: &dyn std::fmt::Display| failed(format!("array {name}: {what}"));
        let array = archive
            .by_name(&name)
            .map_err(|e| of_array(&e))?
            .ok_or_else(|| of_array(&"listed, but not there"))?;
        let dims: Vec<usize> = array.shape().iter().map(|&n| n as usize).collect();
        if array.order() != npyz::Order::C && dims.len() > 1 {
            return Err(of_array(&"expected row-major, got column-major"));
        }
        let data = array.into_vec::<f32>().map_err(|e| of_array(&e))?;
        let num = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if num != Some(data.len()) {
            let got = data.len();
            return Err(of_array(&format!("{dims:?}, but {got} elements")));
        }
        tensors.push((name, Tensor::from_f32(&dims, &data)));
    }
    Ok(tensors)
}

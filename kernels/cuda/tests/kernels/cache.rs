//! Compiled kernels on disk.

use lazybatch_cuda::jit::{Form, Jit, compile};
use lazybatch_cuda::{Context, CudaError, Kernels, kernels};

use crate::harness::on_device;
use crate::process::{Libraries, outcome};

const TEXT: &str = "extern \"C\" __global__ void nothing() {}";

on_device! {
    fn every_source_loads_and_has_its_kernels(gpu) {
        gpu.kernels.load(&kernels::SOURCES).unwrap();
    }
}

on_device! {
    fn a_file_is_made_once_read_again_and_replaced_where_it_is_damaged(gpu) {
        let folder = tempfile::tempdir().unwrap();
        let jit = Jit::new(&gpu.context, Some(folder.path().join("kernels"))).unwrap();
        let first = jit.image("nothing.cu", TEXT, Form::Ptx).unwrap();
        let file = || {
            let files: Vec<_> = std::fs::read_dir(folder.path().join("kernels")).unwrap().collect();
            assert_eq!(files.len(), 1);
            files.into_iter().next().unwrap().unwrap().path()
        };
        let whole = std::fs::read(file()).unwrap();
        let mut other = first.clone();
        other[0] = b'#';
        for damaged in [whole[..whole.len() / 2].to_vec(), b"foreign".to_vec(), vec![]] {
            std::fs::write(file(), damaged).unwrap();
            assert_eq!(jit.image("nothing.cu", TEXT, Form::Ptx).unwrap(), first);
            assert_eq!(std::fs::read(file()).unwrap(), whole);
        }
        // What is there is what is used: the compiler is not asked again.
        jit.module(&gpu.context, "nothing.cu", TEXT).unwrap().function("nothing").unwrap();
    }
}

#[test]
fn ptx_is_made_where_machine_code_is_not_taken() {
    let name = "cache::ptx_is_made_where_machine_code_is_not_taken";
    let ran = outcome(name, 0, Libraries::All, &[], || {
        let context = Context::new(0).unwrap();
        if !context.is_emulator().unwrap() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels");
        let jit = Jit::new(&context, Some(path.clone())).unwrap();
        let module = jit
            .with_form(Form::Cubin)
            .module(&context, "nothing.cu", TEXT);
        module.unwrap().function("nothing").unwrap();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 2);
    });
    // The emulator says what it has refused.
    let refused = "expected a module of PTX text";
    assert!(ran.passed && ran.stderr.contains(refused), "{ran:?}");
}

on_device! {
    fn two_writers_and_a_folder_that_cannot_be_made(gpu) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels");
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    gpu.context.bind().unwrap();
                    let jit = Jit::new(&gpu.context, Some(path.clone())).unwrap();
                    jit.image("nothing.cu", TEXT, Form::Ptx).unwrap();
                });
            }
        });
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);
        // A file stands where the folder would be.
        let blocked = folder.path().join("file");
        std::fs::write(&blocked, "").unwrap();
        let kernels = Kernels::new(&gpu.context, Some(blocked)).unwrap();
        kernels.load(&[kernels::SOURCES[0]]).unwrap();
    }
}

on_device! {
    fn what_does_not_compile_says_where(gpu) {
        let jit = Jit::new(&gpu.context, None).unwrap();
        let error = jit.image("wrong.cu", "\nno sense", Form::Ptx).unwrap_err();
        let CudaError::Compile { file, log, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(file == "wrong.cu" && log.contains("wrong.cu(2)"), "{error}");
        let cubin = compile("nothing.cu", TEXT, 80, Form::Cubin, &[]).unwrap();
        assert!(cubin.image.starts_with(b"\x7fELF"));
    }
}

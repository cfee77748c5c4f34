// recurrent

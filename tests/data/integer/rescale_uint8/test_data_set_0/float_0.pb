€By0J€		

   !!""##$$$%%&&''((())**++,,,--..//00011223344455667788999::;;<<===>>??@@AAABBCCDDEEEFFGGHHIIIJJKKLLMMMNNOOPPQQRRRSSTTUUVVVWWXXYYZZZ[[\\]]^^^__``aabbbccddeeffggghhiijjkkkllmmnnoooppqqrrs